"""Publishing on drift: a delta comes soon after users have changed their taste, and not before."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from storage.checkpoint import open_delta
from tests.integration.trainer.follow_runs import followed, killed, trained_state
from trainer.checkpoint import checkpoints, read_state
from trainer.config import DriftConfig, PublishConfig, TrainConfig, parse_content

BATCH, BEFORE, AFTER, WINDOW = 128, 9_600, 6_400, 2_560


@pytest.fixture
def stream(newer: Path, tmp_path: Path) -> Path:
    """Users like one half of the items, and after BEFORE rows the other half."""
    table = pq.read_table(newer)
    table = table.take(pa.array(np.random.default_rng(3).integers(0, table.num_rows, BEFORE + AFTER)))
    codes = table.column("item_code").combine_chunks()
    known = pa.array(sorted(pc.unique(codes).to_pylist()))
    likes = pc.index_in(codes, known).to_numpy() % 2 == 0
    clicked = np.concatenate([likes[:BEFORE], ~likes[BEFORE:]])
    table = table.set_column(table.schema.get_field_index("clicked"), "clicked", pa.array(clicked))
    folder = tmp_path / "stream"
    folder.mkdir()
    pq.write_table(table, folder / "a.parquet", row_group_size=1000)
    return folder


@pytest.fixture
def watched(place: Path, config: TrainConfig) -> TrainConfig:
    content = config.model_dump(mode="json")
    content["publish"] = PublishConfig(
        delta_every_rows=BEFORE + AFTER, delta_on_drift=DriftConfig(rise=0.1, rows=WINDOW), version_at_share=0.0
    ).model_dump(mode="json")
    changed = parse_content(content)
    (place / "run" / "config.json").write_text(changed.model_dump_json())
    return changed


def rows_of_deltas(place: Path) -> list[int]:
    found: dict[int, None] = {}
    for folder in checkpoints(place / "run"):
        state = read_state(folder)
        if state.snapshots:
            found[state.position.published_rows - 2000] = None
    return [rows for rows in found if rows > 0]


@pytest.mark.long
@pytest.mark.slow
def test_a_delta_is_published_soon_after_a_change_of_taste_also_when_it_is_killed(
    place: Path, watched: TrainConfig, stream: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(place, tmp_path / "other")
    report = followed(place, stream, progress=True)
    said = " ".join(capfd.readouterr().err.split())
    assert "the loss has risen from 0." in said
    on_drift = rows_of_deltas(place)[0]
    assert BEFORE < on_drift <= BEFORE + WINDOW + BATCH
    assert len(report.published) < 6  # and not with each batch after it
    for step, times in (("take", 80), ("prepare", 1), ("take", 30)):
        killed(tmp_path / "other", stream, step, times)
    again = followed(tmp_path / "other", stream)
    assert rows_of_deltas(tmp_path / "other")[0] == on_drift
    assert trained_state(watched, again) == trained_state(watched, report)
    first: Any = open_delta(report.published[0]).manifest
    assert first.sequence == 1
