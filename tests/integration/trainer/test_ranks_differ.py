"""Ranks that were not given the same, as on machines of which one was forgotten, are refused with the difference."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.errors import ConfigError
from tests.integration.trainer.ranks_process import run_ranks
from tests.integration.trainer.test_ranks import SAME_MODEL
from trainer import train
from trainer.checkpoint import checkpoints, log
from trainer.config import parse_text


def _trained(configs: list[str], data: list[Path], outputs: list[Path], models: list[Path | None]) -> None:
    rank = int(os.environ["RANK"])
    log._SHOWN_AFTER_S = 0.2
    outputs[rank].mkdir(exist_ok=True)
    try:
        config, options = parse_text(configs[rank]), {"repository": models[rank], "progress": False}
        train(config, data[rank], output=outputs[rank], **options)  # type: ignore[arg-type]
    except ConfigError as error:
        (outputs[0].parent / f"said-{rank}").write_text(f"{error.field}: {error}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "field", "words"),
    [
        ("rate", "optimizer.dense.lr", "optimizer.dense.lr is 0.005 at rank 0"),
        ("table", "tables.users.admit_after", "tables.users.admit_after is 3 at rank 0"),
        ("data", "data", "data is "),
        ("repository", "repository", "repository is given at rank 0"),
        ("folder", "output", "does not see there what rank 0 writes"),
    ],
)
def test_what_ranks_were_given_otherwise_is_named(
    clicks: Path, fresh_clicks: Path, tmp_path: Path, what: str, field: str, words: str
) -> None:
    other = SAME_MODEL
    if what == "rate":
        other = other.replace("dense: {lr: 0.005}", "dense: {lr: 0.006}")
    if what == "table":
        other = other.replace("admit_after: 3", "admit_after: 2")
    data = [clicks, fresh_clicks if what == "data" else clicks]
    outputs = [tmp_path / "run", tmp_path / ("other" if what == "folder" else "run")]
    models = [tmp_path / "models" if what == "repository" else None, None]
    assert run_ranks(2, _trained, [SAME_MODEL, other], data, outputs, models) == [0, 0]
    said = [(tmp_path / f"said-{rank}").read_text() for rank in range(2)]
    assert said[0].replace("/run:", "") == said[1].replace("/run:", "").replace("/other:", "")
    assert said[0].startswith(f"{field}: ")
    assert words in said[0]
    assert not checkpoints(tmp_path / "run")
