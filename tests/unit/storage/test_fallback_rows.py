"""Ids without a row read those of their chain: at every budget, under deltas and merges, as plain Python reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage.errors import ConfigError
from storage.features import Jagged
from storage.features.fallback import UNRESOLVED
from storage.initializers import AbsentRows, Initializer
from storage.specs import LookupLevel, LookupSpec
from storage.tiers.lookup_plan import LookupResult
from tests.support.storage.tier_rows import Delta, Rows, Tables, applied, jagged, open_store, tables_of

DIM = 8
ABSENT = AbsentRows.of(Initializer("constant", 0.5))
CHAIN = (LookupLevel("author", "author"), LookupLevel("kind", "kind"), LookupLevel("", "item-mean"))
PARALLEL = (LookupLevel("authors", "author", True), LookupLevel("kind", "kind"))
SPECS = (
    LookupSpec("item", "item", "sum", fallback=CHAIN),
    LookupSpec("author", "author", "sum"),
    LookupSpec("kind", "kind", "sum"),
    LookupSpec("authors", "author", "mean"),
    LookupSpec("summed", "item", "mean", absent=ABSENT, fallback=PARALLEL),
    LookupSpec("weighed", "item", "weighted", fallback=PARALLEL),
    LookupSpec("cut", "item", "none", 3, absent=ABSENT, fallback=(*PARALLEL, CHAIN[-1])),
)
PLACES = {spec.feature: place for place, spec in enumerate(SPECS)}


def table(rng: np.random.Generator, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return ids, rng.standard_normal((len(ids), DIM)).astype(np.float32), np.zeros(len(ids), np.uint8)


def make_rows(seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    items = np.unique(rng.integers(0, 400, 300))
    return Rows(
        {
            "item": table(rng, items),
            "author": table(rng, np.arange(0, 40, 2)),
            "kind": table(rng, np.arange(3)),
            "item-mean": table(rng, np.zeros(1, np.int64)),
        }
    )


def some_ids(batch: int, seed: int) -> list[Jagged]:
    rng = np.random.default_rng(seed)
    lists = [rng.integers(0, 800, rng.integers(0, 6)).tolist() for _ in range(batch)]
    # Some rows know no authors at all.
    authors = [[] if row % 5 == 0 else rng.integers(0, 40, len(ids)).tolist() for row, ids in enumerate(lists)]
    single = [[int(rng.integers(0, 800))] for _ in range(batch)]
    parts: dict[str, list[list[int]]] = {
        "item": single,
        "author": [[int(rng.integers(0, 40))] if row % 4 else [] for row in range(batch)],
        "kind": [[int(rng.integers(0, 6))] for _ in range(batch)],
        "authors": authors,
        "summed": lists,
        "weighed": lists,
        "cut": lists,
    }
    made = [jagged(parts[spec.feature]) for spec in SPECS]
    bags = made[PLACES["weighed"]]
    bags.weights = rng.standard_normal(len(bags.values)).astype(np.float32)
    return made


def plain(tables: Tables, spec: LookupSpec, ids: list[Jagged], bag: int, place: int) -> tuple[np.ndarray, int]:
    """Returns the row that an id reads, and its level."""

    def bag_of(feature: str) -> list[int]:
        bags = ids[PLACES[feature]]
        return bags.values[bags.offsets[bag] : bags.offsets[bag + 1]].tolist()

    row = tables[spec.table].get(bag_of(spec.feature)[place])
    if row is not None:
        return row, 0
    for number, level in enumerate(spec.fallback, start=1):
        given = bag_of(level.feature) if level.feature else [0]
        if not given:
            continue
        row = tables[level.table].get(given[place] if level.parallel else given[0])
        if row is not None:
            return row, number
    constant = 0.5 if spec.absent is not None else 0.0
    return np.full(DIM, constant, np.float32), len(spec.fallback) + 1


def check(tables: Tables, ids: list[Jagged], result: LookupResult) -> None:
    for place, spec in enumerate(SPECS):
        bags = ids[place]
        levels = [0] * len(bags.values)
        for bag, (start, stop) in enumerate(zip(bags.offsets, bags.offsets[1:], strict=False)):
            count = min(stop - start, spec.length or stop - start)
            read = [plain(tables, spec, ids, bag, at) for at in range(count)]
            levels[start : start + count] = [level for _, level in read]
            rows = [row for row, _ in read]
            if spec.pooling == "none":
                mask = result.masks[place]
                assert mask is not None
                assert mask[bag].tolist() == [int(level == 0) for _, level in read] + [0] * (spec.length - count)
                want = np.array([*rows, *np.zeros((spec.length - count, DIM))], np.float32)
            else:
                factors = [1.0] * count if bags.weights is None else bags.weights[start:stop].tolist()
                want = sum((w * row for w, row in zip(factors, rows, strict=True)), np.zeros(DIM, np.float32))
                want = want / max(1, count) if spec.pooling == "mean" else want
            np.testing.assert_allclose(result.outputs[place][bag], want, rtol=1e-5, atol=1e-5)
        fell = result.fallback.get(place)
        found = np.zeros(len(levels), np.uint8) if fell is None else fell.level_of(len(levels))
        if spec.fallback:
            assert found.tolist() == levels
        else:
            assert fell is None


@pytest.mark.parametrize("budget", [None, 4000])
def test_a_store_follows_chains_through_deltas_and_merges(tmp_path: Path, budget: int | None) -> None:
    rows = make_rows(1)
    base = tables_of(rows)
    rng = np.random.default_rng(2)
    new, gone = np.arange(500, 560), np.array(sorted(base["item"])[::3])
    delta = Delta(
        "d" * 32,
        {
            "item": (new, rng.standard_normal((60, DIM)).astype(np.float32)),
            "author": (np.array([1, 3]), rng.standard_normal((2, DIM)).astype(np.float32)),
            "item-mean": (np.zeros(1, np.int64), np.full((1, DIM), 9, np.float32)),
        },
        {"item": gone, "author": np.array([2]), "kind": np.array([0])},
    )
    after = applied(base, delta)
    with open_store(tmp_path / "s", rows, budget) as store:
        plan = store.plan(SPECS)
        mask = 1 << store.stage(delta)
        for batch in (1, 70):
            ids = some_ids(batch, batch)
            # The old snapshot goes on as it was beside the new one.
            check(base, ids, plan.lookup(batch, ids))
            check(after, ids, plan.lookup(batch, ids, mask=mask))
        store.merge(0, at="d" * 32)
        ids = some_ids(70, 3)
        check(after, ids, plan.lookup(70, ids, mask=mask))
        store.set_dram_bytes(3000)
        check(after, ids, plan.lookup(70, ids, mask=mask))


def test_an_id_that_is_late_never_falls_back(tmp_path: Path) -> None:
    rows = make_rows(1)
    with open_store(tmp_path / "s", rows, 200) as store:
        plan = store.plan(SPECS)
        ids = some_ids(50, 5)
        result = plan.lookup(50, ids, timeout_s=0.0)
        assert result.counts.unresolved > 0
        place = PLACES["cut"]
        fell = result.fallback[place]
        late = np.flatnonzero(fell.level_of(len(ids[place].values)) == UNRESOLVED)
        bags = np.searchsorted(ids[place].offsets, late, side="right") - 1
        assert len(late) > 10
        assert not result.outputs[place][bags, late - ids[place].offsets[bags]].any()


def test_a_lookup_without_absent_ids_asks_no_level(tmp_path: Path) -> None:
    rows = make_rows(1)
    known = jagged([[int(i)] for i in rows.content["item"][0]])
    with open_store(tmp_path / "s", rows, None) as store:
        plan = store.plan(SPECS)
        ids = [known if spec.table == "item" else jagged([[]] * len(known.values)) for spec in SPECS]
        ids[PLACES["weighed"]] = Jagged(known.values, known.offsets, np.ones(len(known.values), np.float32))
        result = plan.lookup(len(known.values), ids)
        assert result.fallback == {}
        assert store.stats().absent == 0


@pytest.mark.parametrize(
    ("level", "said"),
    [
        (LookupLevel("author", "autor"), "there is no table 'autor'"),
        (LookupLevel("writer", "author"), "there is no feature 'writer'"),
        (LookupLevel("narrow", "narrow"), "its rows have 2 values, expected 8"),
    ],
)
def test_a_chain_that_does_not_fit_is_refused(tmp_path: Path, level: LookupLevel, said: str) -> None:
    rows = make_rows(1)
    rows.content["narrow"] = (np.arange(3), np.zeros((3, 2), np.float32), np.zeros(3, np.uint8))
    specs = (
        LookupSpec("item", "item", fallback=(level,)),
        LookupSpec("author", "author"),
        LookupSpec("narrow", "narrow"),
    )
    with open_store(tmp_path / "s", rows, None) as store, pytest.raises(ConfigError, match=said) as error:
        store.plan(specs)
    assert error.value.field == "features.item.fallback"
