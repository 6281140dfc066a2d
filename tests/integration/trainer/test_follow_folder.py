"""Training on a folder that grows: the weights are those of one pass over all its files, whatever happened."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from emberline.cli.update import command as update_command
from storage.errors import ConfigError, InvalidInput
from tests.integration.trainer.follow_runs import followed, killed, trained_state
from tests.integration.trainer.update_runs import NEWER_ROWS, check_published, updated
from trainer import UpdateReport
from trainer.checkpoint import checkpoints, read_commit
from trainer.config import PublishConfig, TrainConfig


def cut(newer: Path, folder: Path, rows: int = 300) -> list[Path]:
    """Writes the rows of a file as several files, whose ends are not those of batches."""
    folder.mkdir(exist_ok=True)
    table = pq.read_table(newer)
    paths = []
    for start in range(0, table.num_rows, rows):
        paths.append(folder / f"{start:06d}.parquet")
        pq.write_table(table.slice(start, rows), paths[-1], row_group_size=170)
    return paths


def test_a_folder_that_is_followed_to_its_end_trains_as_one_pass_over_it(
    place: Path, newer: Path, config: TrainConfig, whole: tuple[Path, UpdateReport], tmp_path: Path
) -> None:
    cut(newer, tmp_path / "stream")
    report = followed(place, tmp_path / "stream")
    assert (report.rows, report.steps) == (NEWER_ROWS, 13)
    assert [path.name for path in report.published] == ["000001", "000002", "000003", "000004"]
    assert report.followed is not None
    assert (report.followed.waiting, report.followed.unit) == (0, "files")
    assert trained_state(config, report) == trained_state(config, whole[1])
    check_published(place, config)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [[("take", 7), ("write", 1), ("prepare", 1)], [("save", 3), ("take", 3)]])
def test_no_row_is_lost_or_used_twice_when_it_is_killed_while_files_come(
    place: Path,
    newer: Path,
    config: TrainConfig,
    whole: tuple[Path, UpdateReport],
    tmp_path: Path,
    kills: list[tuple[str, int]],
) -> None:
    files = cut(newer, tmp_path / "all")
    stream = tmp_path / "stream"
    stream.mkdir()
    for number, path in enumerate(files):
        path.rename(stream / path.name)
        if number >= 3 and kills:
            killed(place, stream, *kills.pop(0))
    report = followed(place, stream)
    assert trained_state(config, report) == trained_state(config, whole[1])
    check_published(place, config)


def test_sigterm_ends_with_a_commit_and_a_delta_and_the_same_call_goes_on(
    place: Path, newer: Path, config: TrainConfig, whole: tuple[Path, UpdateReport], tmp_path: Path
) -> None:
    files = cut(newer, tmp_path / "stream")
    files[-1].rename(tmp_path / "last")

    def terminate() -> None:
        while not read_commit(checkpoints(place / "run")[-1]).state.streams:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    first = followed(place, tmp_path / "stream", until_idle=None)
    thread.join()
    assert first.rows % 128 == 0  # whole batches; the other rows are read by the next call
    assert first.published
    (tmp_path / "last").rename(files[-1])
    report = followed(place, tmp_path / "stream")
    assert (report.number, report.rows) == (1, NEWER_ROWS)
    assert trained_state(config, report)[1] == trained_state(config, whole[1])[1]
    again = followed(place, tmp_path / "stream")
    assert (again.rows, again.published) == (NEWER_ROWS, [])


def test_rows_that_make_no_whole_batch_are_published_by_the_clock(place: Path, newer: Path, tmp_path: Path) -> None:
    stream = tmp_path / "stream"
    stream.mkdir()
    table = pq.read_table(newer)
    begun = time.monotonic()
    came: list[float] = []

    def write() -> None:
        pq.write_table(table.slice(0, 50), stream / "a.parquet")
        while not came:
            if list((place / "models" / "clicks" / "1" / "deltas").glob("*/manifest.json")):
                came.append(time.monotonic() - begun)
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)

    thread = threading.Thread(target=write)
    thread.start()
    report = followed(place, stream, until_idle=None, publish=PublishConfig(delta_every_seconds=0.5))
    thread.join()
    assert (report.rows, len(report.published)) == (50, 1)
    assert came[0] < 20.0


def test_another_pass_over_data_does_not_lose_the_position(
    place: Path, newer: Path, fresh_clicks: Path, tmp_path: Path
) -> None:
    cut(newer, tmp_path / "stream")
    followed(place, tmp_path / "stream")
    assert updated(place, fresh_clicks).number == 2
    report = followed(place, tmp_path / "stream")
    assert (report.number, report.rows) == (3, 0)
    gone_back = followed(place, tmp_path / "stream", from_snapshot="1.1")
    assert gone_back.rows == NEWER_ROWS - 4 * 128  # the rows behind that snapshot's are trained on again
    assert followed(place, tmp_path / "stream", from_snapshot="1.1", resume=True).published == []


def test_a_row_that_cannot_be_trained_on_is_named_by_file_and_row(place: Path, newer: Path, tmp_path: Path) -> None:
    files = cut(newer, tmp_path / "stream")
    table = pq.read_table(files[1])
    labels = table.column("clicked").to_pylist()
    labels[200] = None
    at = table.schema.get_field_index("clicked")
    pq.write_table(table.set_column(at, "clicked", pa.array(labels)), files[1], row_group_size=170)
    with pytest.raises(InvalidInput, match=r"000300\.parquet: row 200: .*clicked"):
        followed(place, tmp_path / "stream")


def test_columns_of_kinds_that_do_not_go_together_are_named(place: Path, newer: Path, tmp_path: Path) -> None:
    files = cut(newer, tmp_path / "stream")
    table = pq.read_table(files[1])
    at = table.schema.get_field_index("clicked")
    pq.write_table(table.set_column(at, "clicked", table.column("clicked").cast("int8")), files[1])
    said = r"000300\.parquet: row 0: the column 'clicked' holds int8; expected bool, as in .*000000\.parquet"
    with pytest.raises(InvalidInput, match=said):
        followed(place, tmp_path / "stream")


def test_what_cannot_be_followed_is_refused(place: Path, newer: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no folder"):
        followed(place, newer)
    with pytest.raises(ConfigError, match=r"publish\.delta_every_seconds"):
        followed(place, tmp_path, until_idle=None, publish=PublishConfig())
    command = [str(place / "run"), "--repository", str(place / "models")]
    for more, said in (
        (["--follow", str(tmp_path), "--data", str(newer)], "either as --data or as --follow"),
        (["--data", str(newer), "--until-idle", "1"], "--until-idle is for --follow"),
    ):
        result = CliRunner().invoke(update_command, command + more)
        assert result.exit_code == 2
        assert said in result.output


def test_the_command_follows_text(place: Path, newer: Path, tmp_path: Path) -> None:
    table = pq.read_table(newer).slice(0, 400)
    lists = [name for name in table.column_names if pa.types.is_list(table.schema.field(name).type)]
    for name in lists:
        text = [None if row is None else "|".join(map(str, row)) for row in table.column(name).to_pylist()]
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(text))
    stream = tmp_path / "stream"
    stream.mkdir()
    pc.write_csv(table, stream / "a.csv")
    (stream / "b.csv").write_text(",".join(table.column_names) + "\n")
    command = [str(place / "run"), "--repository", str(place / "models"), "--follow", str(stream), "--until-idle", "0"]
    result = CliRunner().invoke(update_command, [*command, "--quiet", "--every-rows", "100"])
    assert result.exit_code == 0, result.output
    assert "trained 400 rows" in result.output
    assert f"followed {stream}: 0 files waiting" in result.output


def test_the_command_begins_with_a_time(place: Path, newer: Path, config: TrainConfig, tmp_path: Path) -> None:
    training = config.training.model_copy(update={"time_column": "at"})
    (place / "run" / "config.json").write_text(config.model_copy(update={"training": training}).model_dump_json())
    stream = tmp_path / "stream"
    stream.mkdir()
    table = pq.read_table(newer).slice(0, 400)
    pq.write_table(table.append_column("at", pa.array(range(1_700_000_000, 1_700_000_400))), stream / "a.parquet")
    command = [str(place / "run"), "--repository", str(place / "models"), "--follow", str(stream), "--until-idle", "0"]
    result = CliRunner().invoke(update_command, [*command, "--quiet", "--start", "2023-11-14T22:15:00Z"])
    assert result.exit_code == 0, result.output
    assert "trained 300 rows" in result.output
