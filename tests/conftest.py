"""Marks every test by the folder it lies in, and gives hypothesis the time that a busy machine needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")

FOLDERS = {"unit", "integration", "e2e", "gpu"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        parts = Path(item.path).relative_to(root).parts
        if parts[0] in FOLDERS:
            item.add_marker(parts[0])
