"""Sources that a model cannot start from: no run, a damaged one, one of which nothing fits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.errors import CheckpointError, ConfigError, EmberlineError, IntegrityError, NotFound
from tests.integration.trainer.warm_starts import (
    changed,
    fates,
    started,
)
from trainer.checkpoint import checkpoints
from trainer.config import TrainConfig

pytestmark = pytest.mark.slow

Make = Callable[..., TrainConfig]
RunOf = Callable[[str], Path]


def _no_folder(place: Path) -> Path:
    (place / "file").write_text("rows")
    return place / "file"


def _half_written(place: Path) -> Path:
    shutil.rmtree(place / "run" / "checkpoints")
    return place / "run"


def _without_configuration(place: Path) -> Path:
    (place / "run" / "config.json").unlink()
    return place / "run"


def _changed_byte(place: Path) -> Path:
    path = checkpoints(place / "run")[-2] / "dense.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return place / "run"


def _other_format(place: Path) -> Path:
    path = checkpoints(place / "run")[-1] / "state.json"
    path.write_bytes(path.read_bytes().replace(b"emberline-training-", b"emberline-training-9"))
    return place / "run"


def _lost_commit(place: Path) -> Path:
    shutil.rmtree(checkpoints(place / "run")[-2])
    return place / "run"


HOSTILE: dict[str, tuple[Callable[[Path], Path | str], type[EmberlineError], str]] = {
    "missing": (lambda place: place / "nowhere", ConfigError, "is not there; expected the output folder of a run"),
    "file": (_no_folder, ConfigError, "is no folder; expected the output folder"),
    "empty": (lambda place: place, ConfigError, "is neither a run nor a model"),
    "half written": (_half_written, NotFound, "holds no checkpoint"),
    "no configuration": (_without_configuration, NotFound, r"config\.json is missing"),
    "byte": (_changed_byte, IntegrityError, "not what was saved"),
    "format": (_other_format, CheckpointError, "expected format"),
    "lost commit": (_lost_commit, IntegrityError, "is not there"),
    "url": (lambda _: "s3://bucket/run", ConfigError, "s3"),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_what_is_no_run_is_refused(run_of: RunOf, config_of: Make, tmp_path: Path, fault: str) -> None:
    shutil.copytree(run_of("deepfm"), tmp_path / "run")
    make, error, words = HOSTILE[fault]
    with pytest.raises(error, match=words) as caught:
        started(config_of(), make(tmp_path))
    if isinstance(caught.value, ConfigError):
        assert caught.value.field == "start_from"


def test_a_source_of_which_nothing_fits_is_refused(run_of: RunOf, config_of: Make) -> None:
    def other(content: dict[str, Any]) -> None:
        for feature in content["features"]:
            feature["name"] = f"my_{feature['name']}"
            feature["table"] = f"my_{feature['table']}" if feature["table"] else ""
        for table in content["tables"]:
            table["name"] = f"my_{table['name']}"

    config = changed(config_of(), other)
    with pytest.raises(ConfigError, match=r"nothing of it fits.*users.*my_users.*--map") as caught:
        started(config, run_of("deepfm"))
    assert caught.value.field == "start_from"
    assert fates(started(config, run_of("deepfm"), renamed={"my_users": "users"}).report)["my_users"] == "taken"
