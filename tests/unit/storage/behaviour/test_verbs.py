"""Tests that each verb means the same in every tier, whatever its budget."""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.storage.faces import ASSIGN, DIM, ERASE, EVICT, EXPORT, MAKERS, SIZE, Face
from tests.support.storage.tier_rows import EDGE_IDS

Open = Callable[[], Face]
EDGES = np.array(EDGE_IDS, np.int64)
NONE = np.empty(0, np.int64)


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens fresh tiers of one kind, each in a folder of its own; the caller closes what it opens."""
    numbers = itertools.count()

    def opened() -> Face:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return MAKERS[request.param](folder)

    return opened


@pytest.fixture
def tier(make: Open) -> Iterator[Face]:
    face = make()
    yield face
    face.close()


@functools.cache
def verbs_of_kinds() -> dict[str, frozenset[str]]:
    """Opens a tier of each kind, and returns the verbs that it has."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, maker) in enumerate(MAKERS.items()):
            place = Path(folder) / str(number)
            place.mkdir()
            face = maker(place)
            found[name] = frozenset(face.verbs)
            face.close()
    return found


def asks(*verbs: str) -> pytest.MarkDecorator:
    """Runs a test on the tiers that have these verbs."""
    names = [name for name, found in verbs_of_kinds().items() if found.issuperset(verbs)]
    return pytest.mark.parametrize("make", names, indirect=True)


def rows_for(ids: np.ndarray, seed: int) -> np.ndarray:
    """Returns whole numbers that every row type holds.

    A third of the rows end in zeros, and some are zero throughout.
    """
    rng = np.random.default_rng([seed, len(ids)])
    rows = rng.integers(-127, 128, (len(ids), DIM)).astype(np.float32)
    rows[:, 0] = 127
    rows[::3, 1:] = 0
    rows[::7] = 0
    return rows


def check_find(tier: Face, ids: np.ndarray, model: dict[int, np.ndarray]) -> None:
    rows, found = tier.find(ids)
    assert rows.shape == (len(ids), DIM)
    assert rows.dtype == np.float32
    assert found.shape == (len(ids),)
    zero = np.zeros(DIM, np.float32)
    want = np.array([model.get(i, zero) for i in ids.tolist()], np.float32).reshape(-1, DIM)
    np.testing.assert_array_equal(np.asarray(found, np.bool_), [i in model for i in ids.tolist()])
    np.testing.assert_array_equal(rows, want)


def entered(model: dict[int, np.ndarray], ids: np.ndarray, rows: np.ndarray) -> None:
    model.update(zip(ids.tolist(), rows, strict=True))


def test_an_empty_tier_finds_nothing(tier: Face) -> None:
    check_find(tier, EDGES, {})
    check_find(tier, NONE, {})
    assert tier.erase(EDGES) in (0, None)


def test_every_edge_of_the_id_range_is_an_id_like_any_other(tier: Face) -> None:
    model: dict[int, np.ndarray] = {}
    for i in EDGE_IDS:  # Inserted one at a time: none may replace another.
        ids = np.array([i], np.int64)
        tier.insert_or_assign(ids, rows_for(ids, i % 97))
        entered(model, ids, rows_for(ids, i % 97))
        check_find(tier, EDGES, model)
    tier.check_integrity()
    for i in EDGE_IDS[::2]:
        tier.erase(np.array([i], np.int64))
        del model[i]
        check_find(tier, EDGES, model)


def test_empty_batches_change_nothing(tier: Face) -> None:
    model: dict[int, np.ndarray] = {}
    entered(model, EDGES, rows_for(EDGES, 1))
    tier.insert_or_assign(EDGES, rows_for(EDGES, 1))
    empty = np.empty((0, DIM), np.float32)
    tier.insert_or_assign(NONE, empty)
    assert tier.erase(NONE) in (0, None)
    if tier.assign is not None:
        assert tier.assign(NONE, empty) == 0
    if tier.insert_and_evict is not None:
        assert tier.insert_and_evict(NONE, empty) == 0
    check_find(tier, NONE, model)
    check_find(tier, EDGES, model)


def test_repeated_ids_are_answered_each_in_its_place(tier: Face) -> None:
    ids = np.array([5, -1, 9], np.int64)
    model: dict[int, np.ndarray] = {}
    entered(model, ids, rows_for(ids, 2))
    tier.insert_or_assign(ids, rows_for(ids, 2))
    check_find(tier, np.array([9, 9, 7, 5, -1, 9, 7, 5], np.int64), model)


def test_the_last_of_equal_ids_wins_and_an_id_is_erased_once(tier: Face) -> None:
    ids = np.array([4, 8, 4, 4, 8, 15], np.int64)
    rows = rows_for(ids, 3)
    rows[:, :2] = [[127, turn] for turn in range(6)]
    model: dict[int, np.ndarray] = {}
    entered(model, ids, rows)
    tier.insert_or_assign(ids, rows)
    check_find(tier, ids, model)
    assert tier.erase(np.array([4, 4, 16, 4], np.int64)) in (1, None)
    del model[4]
    check_find(tier, ids, model)
    tier.check_integrity()


@pytest.mark.slow
def test_a_tier_grows_without_losing_a_row(tier: Face) -> None:
    rng = np.random.default_rng(5)
    ids = np.unique(rng.integers(-(2**63), 2**63 - 1, 20_000, endpoint=True))
    rng.shuffle(ids)
    rows = rows_for(ids, 6)
    start = 0
    for size in (1, 10, 100, 1000, 5000, len(ids)):
        tier.insert_or_assign(ids[start:size], rows[start:size])
        start = size
        got, found = tier.find(ids)
        assert np.asarray(found).tolist() == [1] * size + [0] * (len(ids) - size)
        np.testing.assert_array_equal(got[:size], rows[:size])
        assert not got[size:].any()
    tier.check_integrity()


def test_rows_are_replaced_erased_and_put_again(tier: Face) -> None:
    rng = np.random.default_rng(7)
    pool = np.unique(np.concatenate([EDGES, rng.integers(-300, 300, 200)]))
    model: dict[int, np.ndarray] = {}
    for turn in range(12):
        ids = rng.choice(pool, 60, replace=False)
        tier.insert_or_assign(ids, rows_for(ids, turn))
        entered(model, ids, rows_for(ids, turn))
        gone = rng.choice(pool, 25, replace=False)
        assert tier.erase(gone) in (len(model.keys() & set(gone.tolist())), None)
        for i in gone.tolist():
            model.pop(i, None)
        check_find(tier, rng.permutation(pool), model)
    tier.check_integrity()


def test_what_is_read_is_the_callers_own(tier: Face) -> None:
    ids = np.array([1, 2, 3], np.int64)
    rows = rows_for(ids, 8)
    given = rows.copy()
    tier.insert_or_assign(ids, given)
    given[:] = 99
    got, _ = tier.find(ids)
    got[:] = 77
    check_find(tier, ids, dict(zip(ids.tolist(), rows, strict=True)))


@asks(ASSIGN)
def test_assign_replaces_what_is_there_and_nothing_else(tier: Face) -> None:
    assert tier.assign is not None
    ids = np.array([3, -(2**63), 7], np.int64)
    model: dict[int, np.ndarray] = {}
    entered(model, ids, rows_for(ids, 9))
    tier.insert_or_assign(ids, rows_for(ids, 9))
    asked = np.array([7, 8, -(2**63), 2**63 - 1, 7], np.int64)
    rows = rows_for(asked, 10)
    rows[:, :2] = [[127, turn] for turn in range(5)]
    assert tier.assign(asked, rows) == 3  # An id counts as often as it occurs.
    for i, row in zip(asked.tolist(), rows, strict=True):
        if i in model:
            model[i] = row
    check_find(tier, np.concatenate([ids, asked]), model)


@asks(EVICT, EXPORT)
def test_insert_and_evict_leaves_the_rows_that_are_there(tier: Face) -> None:
    assert tier.insert_and_evict is not None
    ids = np.array([3, -1, 7], np.int64)
    tier.insert_or_assign(ids, rows_for(ids, 11))
    more = np.array([-1, 50, 7, 51], np.int64)
    assert tier.insert_and_evict(more, rows_for(more, 12)) == 2
    model: dict[int, np.ndarray] = {}
    entered(model, more, rows_for(more, 12))
    entered(model, ids, rows_for(ids, 11))
    check_find(tier, np.concatenate([ids, more]), model)


@asks(EXPORT)
def test_export_gives_every_row_once_whatever_the_limit(tier: Face) -> None:
    ids = np.concatenate([EDGES, np.arange(100, 200, 3)])
    rows = rows_for(ids, 13)
    tier.insert_or_assign(ids, rows)
    tier.erase(ids[5:9])
    want = {i: row.tobytes() for i, row in zip(ids.tolist(), rows, strict=True) if i not in ids[5:9].tolist()}
    for limit in (1, 2, 7, len(want), 1000):
        assert tier.held(limit) == want


@asks(SIZE, ERASE)
def test_the_size_is_the_number_of_ids(tier: Face) -> None:
    assert tier.size is not None
    tier.insert_or_assign(EDGES, rows_for(EDGES, 14))
    tier.insert_or_assign(EDGES[:3], rows_for(EDGES[:3], 15))
    assert tier.size() == len(EDGES)
    tier.erase(EDGES[:2])
    assert tier.size() == len(EDGES) - 2


@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "erase", "find", "reopen"]),
            st.lists(st.sampled_from(EDGE_IDS) | st.integers(-9, 9), max_size=8),
        ),
        max_size=12,
    )
)
def test_any_sequence_of_verbs_is_a_dict(make: Open, steps: list[tuple[str, list[int]]]) -> None:
    tier = make()
    model: dict[int, np.ndarray] = {}
    for turn, (verb, listed) in enumerate(steps):
        ids = np.array(listed, np.int64)
        if verb == "put":
            tier.insert_or_assign(ids, rows_for(ids, turn))
            entered(model, ids, rows_for(ids, turn))
        elif verb == "erase":
            tier.erase(ids)
            for i in listed:
                model.pop(i, None)
        elif verb == "reopen" and tier.reopen is not None:
            tier = tier.reopen()
        check_find(tier, np.array([*listed, *EDGE_IDS, *listed], np.int64), model)
    tier.check_integrity()
    tier.close()
