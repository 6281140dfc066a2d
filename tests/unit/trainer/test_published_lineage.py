"""Tests the line of published snapshots as a value, the policy's decisions on it, and which deltas must stay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from storage.errors import CheckpointError, NotFound
from trainer.publishing.lineage import MAX_ANCESTORS, MAX_PUBLISHED, Lineage, Pending, Published
from trainer.publishing.policy import DeltaPolicy
from trainer.publishing.retention import needed_deltas


def snapshot(version: int, sequence: int) -> str:
    return f"{version:08x}{sequence:024x}"


def entry(version: int, sequence: int) -> Published:
    return Published(snapshot(version, sequence), version, sequence, {"t": version * 1000 + sequence}, "d")


def line_of(*names: tuple[int, int], row_bytes: int = 10) -> Lineage:
    lineage = Lineage()
    for version, sequence in names:
        size = 100 if sequence == 0 else row_bytes
        lineage = lineage.with_published(entry(version, sequence), row_bytes=size)
    return lineage


def test_a_line_survives_json() -> None:
    pending = Pending("delta", "a", 1, 3, "b", {"t": 4}, {"t": 2}, 1, ("b", "c"), "e", 12)
    lineage = replace(line_of((1, 0), (1, 1)), pending=pending)
    assert Lineage.from_json_value(lineage.to_json_value()) == lineage
    assert Lineage.from_json_value(Lineage().to_json_value()) == Lineage()
    value: dict[str, Any] = lineage.to_json_value()
    refused: list[Any] = [None, [], {}, {**value, "more": 1}, {**value, "published": [1]}]
    for wrong in refused:
        with pytest.raises(CheckpointError, match="another release"):
            Lineage.from_json_value(wrong)


def test_a_line_counts_deltas_and_bytes_since_its_version() -> None:
    lineage = line_of((1, 0), (1, 1), (1, 2))
    assert (lineage.version, lineage.base, lineage.deltas) == (1, snapshot(1, 0), 2)
    assert (lineage.version_bytes, lineage.delta_bytes, lineage.last_sequence) == (100, 20, 2)
    cumulative = lineage.with_published(entry(1, 3), row_bytes=15, cumulative=True)
    assert (cumulative.delta_bytes, cumulative.deltas) == (15, 3)
    version = cumulative.with_published(entry(2, 0), row_bytes=130)
    assert (version.deltas, version.delta_bytes, version.version_bytes, version.last_sequence) == (0, 0, 130, 0)
    assert version.line() == tuple(snapshot(*name) for name in [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0)])


def test_a_snapshot_is_found_by_id_and_by_name() -> None:
    lineage = line_of((1, 0), (1, 1), (2, 0))
    assert lineage.find("1.1") == lineage.find(snapshot(1, 1)) == entry(1, 1)
    assert lineage.base_of(entry(1, 1)) == entry(1, 0)
    with pytest.raises(NotFound, match=r"'1\.2' .* 1\.0 to 2\.0"):
        lineage.find("1.2")


def test_going_back_forgets_what_came_after_but_no_number() -> None:
    lineage = line_of((1, 0), (1, 1), (1, 2), (1, 3))
    back = lineage.up_to(snapshot(1, 1))
    assert (back.newest, back.deltas, back.last_sequence) == (entry(1, 1), 1, 3)
    older = line_of((1, 0), (1, 1), (1, 2), (2, 0), (2, 1)).up_to(snapshot(1, 1))
    assert (older.version, older.base, older.last_sequence) == (1, snapshot(1, 0), 2)
    assert older.newest == entry(1, 1)


def test_a_long_line_keeps_its_version_and_the_ids_of_the_rest() -> None:
    lineage = line_of((1, 0), *((1, n) for n in range(1, MAX_PUBLISHED + 20)))
    assert lineage.published[0] == entry(1, 0)
    assert len(lineage.published) == MAX_PUBLISHED + 1
    assert lineage.published[1].sequence == 20
    assert lineage.ancestors == tuple(snapshot(1, n) for n in range(1, 20))
    assert set(lineage.line()) == {snapshot(1, n) for n in range(MAX_PUBLISHED + 20)}
    over = line_of((1, 0), *((2 + n // 2, n % 2) for n in range(2 * MAX_PUBLISHED)))
    assert entry(1, 0) not in over.published
    assert all(over.base_of(published).sequence == 0 for published in over.published)
    full = replace(over, ancestors=tuple(map(str, range(MAX_ANCESTORS))))
    assert len(full.line()) == MAX_ANCESTORS
    assert full.line()[-1] == over.published[-1].snapshot


@pytest.mark.parametrize(
    ("policy", "deltas", "kind"),
    [
        (DeltaPolicy(), 0, "delta"),
        (DeltaPolicy(cumulative_every=4, version_at_share=0), 3, "cumulative"),
        (DeltaPolicy(cumulative_every=4, version_at_share=0), 4, "delta"),
        (DeltaPolicy(cumulative_every=0, version_at_share=0), 15, "delta"),
        (DeltaPolicy(cumulative_every=4, version_every_deltas=8, version_at_share=0), 7, "compaction"),
        (DeltaPolicy(cumulative_every=0, version_every_deltas=0), 5, "delta"),
        (DeltaPolicy(cumulative_every=0, version_every_deltas=0), 6, "compaction"),
    ],
)
def test_the_policy_says_what_comes_next(policy: DeltaPolicy, deltas: int, kind: str) -> None:
    assert policy.next_kind(Lineage()) == "version"
    assert policy.next_kind(line_of((1, 0), *((1, n + 1) for n in range(deltas)))) == kind


def test_a_delta_is_due_by_steps_rows_or_seconds() -> None:
    assert not DeltaPolicy().publishes_deltas
    assert not DeltaPolicy().delta_due(steps=10**9, rows=10**9, seconds=1e9)
    policy = DeltaPolicy(delta_every_rows=100, delta_every_seconds=10.0)
    assert policy.publishes_deltas
    assert not policy.delta_due(steps=10**9, rows=99, seconds=9.9)
    assert policy.delta_due(steps=0, rows=100, seconds=0)
    assert policy.delta_due(steps=0, rows=0, seconds=10.0)
    assert DeltaPolicy(delta_every_steps=3).delta_due(steps=3, rows=0, seconds=0)


@dataclass(frozen=True)
class Delta:
    """Stands in for a delta, with the fields that needed_deltas reads."""

    sequence: int
    applies_to: tuple[str, ...]
    base: str = snapshot(1, 0)

    @property
    def snapshot(self) -> str:
        return snapshot(1, self.sequence)


def chained(sequence: int) -> Delta:
    return Delta(sequence, (snapshot(1, sequence - 1),))


def cumulative(sequence: int) -> Delta:
    return Delta(sequence, tuple(snapshot(1, n) for n in range(sequence)))


@pytest.mark.parametrize(
    ("deltas", "keep", "kept"),
    [
        ([chained(n) for n in range(1, 9)], 2, set(range(1, 9))),
        ([*map(chained, range(1, 5)), cumulative(5), chained(6), chained(7)], 1, {5, 6, 7}),
        ([*map(chained, range(1, 5)), cumulative(5), chained(6), chained(7)], 4, {1, 2, 3, 4, 5, 6, 7}),
        ([cumulative(2), chained(3), cumulative(4), chained(5)], 2, {4, 5}),
        # Delta 5 is a new base that continues 2, so the deltas between may be removed.
        ([cumulative(1), chained(2), chained(3), chained(4), Delta(5, (snapshot(1, 2),))], 1, {1, 2, 5}),
        ([chained(7)], 3, {7}),
        ([], 3, set()),
    ],
)
def test_deltas_stay_that_a_kept_one_is_reached_by(deltas: list[Delta], keep: int, kept: set[int]) -> None:
    assert needed_deltas(deltas, keep) == kept  # type: ignore[arg-type]
