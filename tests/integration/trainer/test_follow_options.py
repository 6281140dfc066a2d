"""Following beside what else a run may do: fewer negative rows, newer golden requests on the way."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.integration.trainer.follow_runs import followed, killed, trained_state
from tests.integration.trainer.test_follow_folder import cut
from tests.integration.trainer.update_runs import NEWER_ROWS, updated
from trainer import follow_pass, train
from trainer.config import TrainConfig, parse_content
from trainer.loop import TrainingLoop
from trainer.trained import read_sample


@pytest.mark.slow
def test_fewer_negative_rows_are_those_of_a_pass_over_the_files(
    clicks: Path, newer: Path, config: TrainConfig, tmp_path: Path
) -> None:
    content = config.model_dump(mode="json")
    content["data"]["negative_sampling"] = 0.5
    sampled = parse_content(content)
    place, other = tmp_path / "place", tmp_path / "other"
    train(sampled, clicks, output=place / "run", repository=place / "models", limit=2000, progress=False)
    shutil.copytree(place, other)
    cut(newer, tmp_path / "stream")
    killed(place, tmp_path / "stream", "take", 4)
    report = followed(place, tmp_path / "stream")
    expected = updated(other, newer)
    assert NEWER_ROWS / 2 < report.rows == expected.rows < NEWER_ROWS
    assert trained_state(sampled, report) == trained_state(sampled, expected)


def test_golden_requests_get_newer_rows_on_the_way(
    place: Path, newer: Path, config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(newer, tmp_path / "stream")
    monkeypatch.setattr(follow_pass, "_RENEW_S", 0.0)
    real, left = TrainingLoop.take, [9]

    def taken(loop: TrainingLoop, *given: object) -> None:
        left[0] -= 1
        if not left[0]:
            raise MemoryError
        real(loop, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(TrainingLoop, "take", taken)
    with pytest.raises(MemoryError):
        followed(place, tmp_path / "stream")
    kept = set(np.asarray(read_sample(place / "run", config)["price"].values).tolist())
    newest = set(pq.read_table(newer).column("price").to_numpy().tolist())
    assert len(kept & newest) == 1024
    assert len(kept - newest) > 500  # others stay, spread over those that were there
