"""Rows that get their labels from other events, beside a join over all events at once, however they are read."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.data.streams import JoinedSource, JoinLog, JoinOptions, KindOptions, Piece, Position, Start
from storage.errors import CheckpointError, ConfigError, InvalidInput
from tests.support.examples import examples

Event = tuple[int, float]
_OPEN: list[JoinedSource] = []


@dataclass
class Events:
    """A stream of events that are there, given on in pieces of random sizes, and sometimes not at once."""

    table: Any
    random: random.Random
    name: str = "events"
    is_expecting: bool = False
    at: int = 0
    until: int = field(default=1 << 30)

    def waiting(self) -> tuple[int, str]:
        return self.table.num_rows - self.at, "events"

    def close(self) -> None:
        pass

    def seek(self, position: Position | None, start: Start, *, skip_lost: bool = False) -> Position:
        self.at = 0 if position is None else int(position["at"])
        return {"at": self.at}

    def read(self, rows: int) -> Piece | None:
        count = min(self.random.randint(0, 4), min(self.table.num_rows, self.until) - self.at)
        if count <= 0:
            return None
        first, self.at = self.at, self.at + count
        return Piece(self.table.slice(first, count), lambda n: {"at": first + n}, lambda row: f"event {first + row}")


def events(found: list[Event], **columns: Any) -> Any:
    return pa.table(
        {
            "key": pa.array([key for key, _ in found], pa.int64()),
            "at": pa.array([at for _, at in found], pa.float64()),
            "n": pa.array(range(len(found)), pa.int64()),
            **columns,
        }
    )


def options(**given: Any) -> JoinOptions:
    return JoinOptions(**{"key": "key", "label": "clicked", "window_seconds": 10.0, "lateness_seconds": 3.0, **given})


def joined(rows: Any, labels: Any, folder: Path, seed: int = 0, **given: Any) -> JoinedSource:
    chance = random.Random(seed)
    sources = [Events(rows, chance, "rows"), None if labels is None else Events(labels, chance, "labels")]
    source = JoinedSource(sources[0], sources[1], options(**given), "at", JoinLog(folder / "join"))  # type: ignore[arg-type]
    _OPEN.append(source)
    return source


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _OPEN:
        _OPEN.pop().close()


def all_of(source: JoinedSource, tries: int = 60) -> tuple[list[tuple[int, int]], list[Position]]:
    """Reads on for a while; returns rows by number with their labels, and the position behind each."""
    found, positions = [], []
    for _ in range(tries):
        piece = source.read(3)
        if piece is None:
            continue
        table = piece.table
        found += list(zip(table.column("n").to_pylist(), table.column("clicked").to_pylist(), strict=True))
        positions += [json.loads(json.dumps(piece.after(row + 1))) for row in range(table.num_rows)]
    return found, positions


def reference(rows: list[Event], labels: list[Event], window: float, lateness: float) -> list[tuple[int, int]]:
    """Joins all events at once: what is late is left out, and rows wait for the end of their window in order."""

    def in_time(found: list[Event]) -> tuple[list[tuple[int, Event]], float]:
        kept, newest = [], -1.0
        for number, event in enumerate(found):
            if event[1] >= newest - lateness:
                kept.append((number, event))
            newest = max(newest, event[1])
        return kept, newest

    (own, newest_row), (others, newest_label) = in_time(rows), in_time(labels)
    until = min(newest_row, newest_label) - lateness
    found = []
    for number, (key, at) in own:
        if at + window > until:
            break
        times = [time for _, (other, time) in others if other == key]
        found.append((number, int(any(at - lateness <= time < at + window for time in times))))
    return found


#: Events a second apart or so, some of them out of order.
streams_of_events = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(-6, 2)), min_size=1, max_size=30
).map(
    lambda parts: [
        (key, float(max(0, sum(step for _, step, _ in parts[: place + 1]) + shift)))
        for place, (key, _, shift) in enumerate(parts)
    ]
)


@given(streams_of_events, streams_of_events, st.integers(0, 99), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_labels_are_those_of_a_join_over_all_events_also_when_it_is_killed(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Event], labels: list[Event], seed: int, data: Any
) -> None:
    folder = tmp_path_factory.mktemp("join")
    tail = [(9, max(at for _, at in rows + labels) + 30.0 + step) for step in (0, 20)]
    rows, labels = rows + tail, labels + tail
    expected = reference(rows, labels, 10.0, 3.0)
    tables = events(rows), events(labels)
    source = joined(*tables, folder, seed)
    source.seek(None, "earliest")
    found, positions = all_of(source)
    assert found == expected
    source.sync()
    if positions:
        place = data.draw(st.integers(0, len(positions) - 1))
        again = joined(*tables, folder, seed + 1)
        again.seek(positions[place], "earliest")
        rest, after = all_of(again)
        assert found[: place + 1] + rest == expected
        if after:
            assert after[-1]["counts"] == positions[-1]["counts"]
            third = joined(*tables, folder, seed + 2)
            third.seek(after[0], "earliest")
            assert found[: place + 2] + all_of(third)[0] == expected


@given(streams_of_events, st.lists(st.booleans(), min_size=30, max_size=30), st.integers(0, 99), st.data())
@settings(max_examples=examples(40), deadline=None)
def test_one_stream_of_both_kinds_is_joined_the_same_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, found: list[Event], is_row: list[bool], seed: int, data: Any
) -> None:
    folder = tmp_path_factory.mktemp("join")
    kinds = ["view" if row else "click" for row, _ in zip(is_row, found, strict=False)]
    table = events(found, kind=pa.array(kinds))
    newest, kept = -1.0, []
    for number, (key, at) in enumerate(found):
        if at >= newest - 3.0:
            kept.append((number, kinds[number], key, at))
        newest = max(newest, at)
    expected = []
    for number, kind, key, at in kept:
        if kind == "view" and at + 10.0 > newest - 3.0:
            break
        if kind == "view":
            times = [time for _, other, own, time in kept if other == "click" and own == key]
            expected.append((number, int(any(at - 3.0 <= time < at + 10.0 for time in times))))
    both = KindOptions(column="kind", row="view", label="click")
    source = joined(table, None, folder, seed, kind=both)
    source.seek(None, "earliest")
    rows, positions = all_of(source)
    assert rows == expected
    if positions:
        place = data.draw(st.integers(0, len(positions) - 1))
        again = joined(table, None, folder, seed + 1, kind=both)
        again.seek(positions[place], "earliest")
        assert rows[: place + 1] + all_of(again)[0] == expected


def test_rows_and_labels_of_one_stream_are_told_apart_and_late_ones_counted(tmp_path: Path) -> None:
    found = [(1, 0.0), (2, 1.0), (1, 4.0), (2, 12.0), (3, 20.0), (3, 13.0), (4, 40.0), (5, 41.0)]
    kinds = ["view", "view", "click", "click", "view", "click", "view", "other"]
    source = joined(
        events(found, kind=pa.array(kinds)), None, tmp_path, kind=KindOptions(column="kind", row="view", label="click")
    )
    source.seek(None, "earliest")
    rows, positions = all_of(source)
    assert rows == [(0, 1), (1, 0), (4, 0)]  # the click on 2 came behind the window
    figures = source.figures
    assert (figures["labels"], figures["positives"], figures["waiting_rows"]) == (2, 1, 1)
    assert figures["labels_late"] == 1  # the click on 3 came behind a view of seven seconds later
    assert (positions[-1]["counts"]["rows"], positions[-1]["counts"]["positives"]) == (3, 1)


def test_a_label_behind_the_lateness_is_left_out_and_counted(tmp_path: Path) -> None:
    rows = events([(1, 10.0), (2, 10.0), (9, 60.0)])
    source = joined(rows, events([(1, 15.0), (2, 11.9), (2, 11.0), (9, 60.0), (9, 60.5)]), tmp_path)
    source.seek(None, "earliest")
    assert all_of(source)[0] == [(0, 1), (1, 0)]
    assert source.figures["labels_late"] == 2


def test_a_stream_without_events_holds_the_other_one_up_for_a_while_only(tmp_path: Path) -> None:
    rows = events([(1, 10.0), (2, 60.0)])
    source = joined(rows, events([]), tmp_path, idle_seconds=0.05)
    source.seek(None, "earliest")
    assert source.read(10) is None
    found: list[Any] = []
    while not found:
        found = all_of(source)[0]
    assert found == [(0, 0)]


def test_several_columns_make_a_key(tmp_path: Path) -> None:
    rows = events([(1, 0.0), (1, 0.0), (9, 60.0)], item=pa.array(["a", "b", "z"]))
    labels = events([(1, 2.0), (9, 60.0)], item=pa.array(["b", "z"]))
    source = joined(rows, labels, tmp_path, key=["key", "item"])
    source.seek(None, "earliest")
    assert all_of(source)[0] == [(0, 0), (1, 1)]


def test_more_rows_than_may_wait_are_an_error_only_where_no_label_is_waited_for(tmp_path: Path) -> None:
    rows = events([(number, float(number)) for number in range(30)])
    source = joined(rows, events([(0, 100.0)]), tmp_path / "small", max_waiting=5)
    source.seek(None, "earliest")
    with pytest.raises(ConfigError, match=r"data\.join\.max_waiting: \d rows"):
        all_of(source)
    slow = joined(rows, events([]), tmp_path / "slow", max_waiting=20)
    slow.seek(None, "earliest")
    assert all_of(slow)[0] == []  # labels that have not come are waited for
    assert 20 <= slow.figures["waiting_rows"] < 24


def test_events_without_time_or_key_are_named(tmp_path: Path) -> None:
    broken = events([(1, 0.0), (2, 1.0)]).set_column(0, "key", pa.array([1, None], pa.int64()))
    source = joined(broken, events([(1, 1.0)]), tmp_path)
    source.seek(None, "earliest")
    with pytest.raises(InvalidInput, match=r"event 1: expected a time in 'at'.*'key': None"):
        all_of(source)
    source = joined(events([(1, 1e11)]), events([(1, 1.0)]), tmp_path)
    source.seek(None, "earliest")
    with pytest.raises(InvalidInput, match="not in the future"):
        all_of(source)


def test_a_log_that_is_damaged_is_named_and_files_that_nothing_needs_go(tmp_path: Path) -> None:
    rows, labels = events([(1, 0.0), (2, 1.0), (9, 60.0)]), events([(1, 2.0), (9, 60.0)])
    source = joined(rows, labels, tmp_path)
    source.seek(None, "earliest")
    _, positions = all_of(source)
    for name in ("00000007.log", "00000001.log.old"):
        (tmp_path / "join" / name).write_bytes(b"")
    again = joined(rows, labels, tmp_path)
    again.seek(positions[0], "earliest")
    all_of(again)
    again.remove_others([positions[0]])
    files = sorted(path.name for path in (tmp_path / "join").glob("*.log"))
    assert files[0] == "00000001.log"
    assert "00000007.log" not in files or files == ["00000001.log", "00000007.log"]
    path = tmp_path / "join" / files[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"00000001\.log: cannot be read: the bytes from"):
        joined(rows, labels, tmp_path).seek(positions[0], "earliest")
    path.unlink()
    with pytest.raises(CheckpointError, match="events that waited to be joined"):
        joined(rows, labels, tmp_path).seek(positions[0], "earliest")
