"""Marks every test by the folder it lies in."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDERS = {"unit", "integration", "e2e", "gpu"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        parts = Path(item.path).relative_to(root).parts
        if parts[0] in FOLDERS:
            item.add_marker(parts[0])
