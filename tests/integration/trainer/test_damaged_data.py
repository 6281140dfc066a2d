"""Damage ends a training with its place and what to do, and loses nothing that was saved."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import CheckpointError, ConfigError, InvalidInput
from trainer import TrainReport, batch_flow, load_trained, train
from trainer.checkpoint import checkpoints, read_state
from trainer.config import TrainConfig
from trainer.loop import TrainingLoop

Make = Callable[..., TrainConfig]
Table = Callable[[int, int], pa.Table]


@pytest.fixture
def data(tmp_path: Path, click_table: Table) -> Path:
    for number in range(8):
        path = tmp_path / "data" / f"{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(click_table(300, number), path, row_group_size=100)
    return tmp_path / "data"


def quiet(config: TrainConfig, data: Path, output: Path, **options: object) -> TrainReport:
    return train(config, data, output=output, progress=False, **options)  # type: ignore[arg-type]


def in_order(config_of: Make) -> TrainConfig:
    """Trains in the order of the files, with a checkpoint after every 600 rows."""
    return config_of(epochs="1", batch_size="100", shuffle="false", checkpoint_every_steps="6")


def same(first: TrainReport, second: TrainReport, data: Path) -> bool:
    before, after = (load_trained(report.output).predict(data) for report in (first, second))
    return first.steps == second.steps and np.array_equal(before, after)


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    """Overwrites a part of a file's second row group, as a disk or a copy may; puts it back."""
    whole = path.read_bytes()
    group = pq.ParquetFile(path).metadata.row_group(1).column(0)
    begin = group.dictionary_page_offset or group.data_page_offset
    path.write_bytes(whole[:begin] + bytes(200) + whole[begin + 200 :])
    yield
    path.write_bytes(whole)


def test_a_damaged_file_ends_the_run_at_its_batch_and_a_mended_one_goes_on_to_the_bit(
    tmp_path: Path, data: Path, config_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_flow, "TOGETHER_ROWS", 100)  # more rows are read ahead of the step otherwise
    config, valid = in_order(config_of), data / "0.parquet"  # whose rows the golden requests come from
    whole = quiet(config, data, tmp_path / "whole", valid=valid)
    with damaged(data / "6.parquet"), pytest.raises(InvalidInput, match=r"6.parquet: row group 1 cannot be read: "):
        quiet(config, data, tmp_path / "run", valid=valid)
    assert read_state(checkpoints(tmp_path / "run")[-1]).position.step == 18
    assert same(quiet(config, data, tmp_path / "run", valid=valid, resume=True), whole, data)


def test_a_damaged_file_is_left_out_as_a_whole_if_so_configured(tmp_path: Path, data: Path, config_of: Make) -> None:
    config = in_order(config_of)
    config = config.model_copy(update={"data": config.data.model_copy(update={"on_damaged": "skip"})})
    without = [path for path in sorted(data.iterdir()) if path.name != "6.parquet"]
    with damaged(data / "6.parquet"):
        skipping = quiet(config, data, tmp_path / "run")
    assert [Path(entry.path).name for entry in skipping.skipped] == ["6.parquet"]
    assert same(skipping, train(config, without, output=tmp_path / "without", progress=False), data)


def test_a_column_that_changes_its_type_in_file_7_ends_the_run_before_its_first_step(
    tmp_path: Path, data: Path, config_of: Make
) -> None:
    table = pq.read_table(data / "7.parquet")
    place = table.column_names.index("user")
    pq.write_table(table.set_column(place, "user", table["user"].cast(pa.string())), data / "7.parquet")
    with pytest.raises(ConfigError, match=r"7.parquet: column 'user' is string, which cannot feed the input 'user'"):
        quiet(in_order(config_of), data, tmp_path / "run")
    assert not checkpoints(tmp_path / "run")


def test_a_full_disk_at_a_checkpoint_leaves_the_one_before_and_the_run_goes_on_to_the_bit(
    tmp_path: Path, data: Path, config_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = in_order(config_of)
    whole = quiet(config, data, tmp_path / "whole")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    real = TrainingLoop._step

    def filling(loop: TrainingLoop, batch: object) -> float:
        if loop.position.step == 16:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
        return real(loop, batch)  # type: ignore[arg-type]

    try:
        with monkeypatch.context() as patched:
            patched.setattr(TrainingLoop, "_step", filling)
            with pytest.raises(CheckpointError, match=r"checkpoint could not be written: .*; make room, then resume"):
                quiet(config, data, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_state(checkpoints(tmp_path / "run")[-1]).position.step == 12
    assert not list((tmp_path / "run" / "checkpoints").glob(".writing-*"))
    assert same(quiet(config, data, tmp_path / "run", resume=True), whole, data)
