"""The difference of two versions, shard by shard, against two dicts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.updates.version_diff import TooDifferent, version_diff
from storage.checkpoint import Shard
from storage.specs import TableSpec
from tests.support.examples import examples

IDS = st.integers(-8, 8) | st.sampled_from([-(2**63), 2**63 - 1])
TABLE = st.dictionaries(IDS, st.sampled_from([0.0, -0.0, 1.0, 2.0]))


def source(table: dict[int, float], per_shard: int) -> Any:
    """Looks like a PublishedVersion with one table `t`."""
    ids = np.array(sorted(table), np.int64)
    rows = np.array([[table[int(i)], 1.0] for i in ids], np.float32).reshape(len(ids), 2)
    starts = range(0, max(1, len(ids)), per_shard)

    def shards(_: str) -> Iterator[Shard]:
        for start in starts:
            part = slice(start, start + per_shard)
            yield Shard(ids[part], rows[part], np.zeros(len(ids[part]), np.uint8))

    return SimpleNamespace(tables=(TableSpec("t", 2, "fp32", len(ids)),), shards=shards, path=Path("x"), snapshot="s")


@settings(max_examples=examples(400), deadline=None)
@given(
    old=TABLE,
    new=TABLE,
    later=st.dictionaries(IDS, st.none() | st.just(9.0)),
    sizes=st.tuples(*[st.integers(1, 5)] * 2),
)
def test_the_difference_makes_the_new_rows_of_the_served_ones(
    old: dict[int, float], new: dict[int, float], later: dict[int, float | None], sizes: tuple[int, int]
) -> None:
    """Compares the difference with that of two dicts.

    later: what deltas did since the old version; None removed the id.
    """
    touched = {"t": np.array(sorted(later), np.int64)}
    diff = version_diff(source(old, sizes[0]), source(new, sizes[1]), touched, 1.0)
    served: dict[int, float] = {**old, **{id_: value for id_, value in later.items() if value is not None}}
    for id_, value in later.items():
        if value is None:
            served.pop(id_, None)
    changed = [
        (int(id_), float(row[0])) for shard in diff.shards("t") for id_, row in zip(shard.ids, shard.rows, strict=True)
    ]
    removed = diff.removed("t").tolist()
    assert [id_ for id_, _ in changed] == sorted({id_ for id_, _ in changed})
    assert removed == sorted(set(removed) - {id_ for id_, _ in changed})
    served.update(changed)
    for id_ in removed:
        served.pop(id_, None)
    assert {id_: np.float32(value).tobytes() for id_, value in served.items()} == {
        id_: np.float32(value).tobytes() for id_, value in new.items()
    }
    assert diff.tables[0].rows == len(changed) == diff.rows
    if not later:
        assert all(id_ not in old or np.float32(old[id_]).tobytes() != np.float32(v).tobytes() for id_, v in changed)


def test_too_many_changes_are_not_worth_it() -> None:
    old = source(dict.fromkeys(range(100), 1.0), 10)
    new = source({**dict.fromkeys(range(100), 1.0), **dict.fromkeys(range(30), 2.0)}, 7)
    assert version_diff(old, new, {}, 0.3).rows == 30
    with pytest.raises(TooDifferent):
        version_diff(old, new, {}, 0.29)
