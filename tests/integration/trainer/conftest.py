"""Fixtures with the click log of the unit tests, and trainings on it."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.integration.trainer.published_line import publish_first
from tests.integration.trainer.update_runs import NEWER_ROWS, POLICY, updated
from trainer import UpdateReport, train
from trainer.checkpoint import checkpoints, read_commit
from trainer.config import PublishConfig, TrainConfig

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
    """Makes configurations as `config_of` does, for fixtures of a wider scope."""
    return _MODULE.clicks_config


@pytest.fixture(scope="session")
def click_table() -> Callable[[int, int], pa.Table]:
    """Makes rows of the click log from their number and a seed."""
    return _MODULE.click_table


@pytest.fixture(scope="session")
def published_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Publishes version 1 of the model `m` with its lineage; the repository must not be changed."""
    folder = tmp_path_factory.mktemp("published")
    publish_first(folder)
    return folder


@pytest.fixture
def models(published_once: Path, tmp_path: Path) -> Path:
    """Copies `published_once`, to publish deltas into."""
    return Path(shutil.copytree(published_once, tmp_path / "models"))


@pytest.fixture(scope="session")
def newer(tmp_path_factory: pytest.TempPathFactory, click_table: Callable[[int, int], pa.Table]) -> Path:
    """Writes rows that came after training; the first of them have users that occur in no other rows."""
    table = click_table(NEWER_ROWS, 9)
    users = table.column("user").to_numpy().copy()
    users[:400:5] += 1_000_000
    path = tmp_path_factory.mktemp("newer") / "newer.parquet"
    pq.write_table(table.set_column(0, "user", pa.array(users)), path, row_group_size=400)
    return path


@pytest.fixture(scope="session")
def config(clicks_config: Callable[..., TrainConfig]) -> TrainConfig:
    """Configures one epoch; a user's row is removed at the second publish without a click of that user."""
    plain = clicks_config(epochs="1", batch_size="128", checkpoint_every_steps="3")
    tables = tuple(
        table.model_copy(update={"expire_after_publishes": 2}) if table.name == "users" else table
        for table in plain.tables
    )
    return plain.model_copy(update={"publish": POLICY, "tables": tables})


@pytest.fixture(scope="session")
def finished(clicks: Path, config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a folder with `run`, a finished training, and `models`, into which it was published."""
    folder = tmp_path_factory.mktemp("finished")
    plain = config.model_copy(update={"publish": PublishConfig(keep_states=32)})
    train(plain, clicks, output=folder / "run", repository=folder / "models", limit=2000, progress=False)
    (folder / "run" / "config.json").write_text(config.model_dump_json())
    return folder


@pytest.fixture(scope="session")
def run_of(
    clicks: Path, clicks_config: Callable[..., TrainConfig], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Trains ten steps of a model when first asked for it, in commits that are full ones and increments."""

    @cache
    def run(model: str) -> Path:
        output = tmp_path_factory.mktemp("runs") / model
        config = clicks_config(model, epochs="1", checkpoint_every_steps="2")
        train(config, clicks, output=output, progress=False, limit=2500)
        assert read_commit(checkpoints(output)[-1]).links > 0
        return output

    return run


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """Copies the finished training, to continue from it."""
    shutil.copytree(finished, tmp_path / "place")
    return tmp_path / "place"


@pytest.fixture(scope="session")
def whole(
    finished: Path, newer: Path, fresh_clicks: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, UpdateReport]:
    """Runs an update that nothing interrupts."""
    place = tmp_path_factory.mktemp("whole") / "place"
    shutil.copytree(finished, place)
    return place, updated(place, newer, valid=fresh_clicks)


@pytest.fixture
def updated_place(whole: tuple[Path, UpdateReport], tmp_path: Path) -> Path:
    """Copies the training that was updated over the newer rows, to continue from it."""
    return Path(shutil.copytree(whole[0], tmp_path / "place"))
