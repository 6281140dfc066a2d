"""The click log of the unit tests."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.integration.trainer.published_line import publish_first
from trainer.config import TrainConfig

_PATH = Path(__file__).parents[2] / "unit" / "trainer" / "conftest.py"
_SPEC = importlib.util.spec_from_file_location("trainer_click_log", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = _MODULE
_SPEC.loader.exec_module(_MODULE)

clicks = _MODULE.clicks
fresh_clicks = _MODULE.fresh_clicks
config_of = _MODULE.config_of
one_thread = _MODULE.one_thread


@pytest.fixture(scope="session")
def clicks_config() -> Callable[..., TrainConfig]:
    """As `config_of`, for fixtures of a wider scope."""
    return _MODULE.clicks_config  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def click_table() -> Callable[[int, int], pa.Table]:
    """Makes rows of the click log from their number and a seed."""
    return _MODULE.click_table  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def published_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with version 1 of the model `m`, and its line of snapshots; not to be changed."""
    folder = tmp_path_factory.mktemp("published")
    publish_first(folder)
    return folder


@pytest.fixture
def models(published_once: Path, tmp_path: Path) -> Path:
    """A copy of `published_once` to publish deltas into."""
    return Path(shutil.copytree(published_once, tmp_path / "models"))
