"""An array of the wrong kind is refused by the name of the argument, by every tier, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from storage.errors import InvalidInput
from tests.support.storage.faces import DIM, MAKERS, Face

IDS = np.array([3, -1, 2**63 - 1], np.int64)
# Whole numbers of which int8 with a scale holds each.
ROWS = np.array([[127, 1, 2, 3], [-127, 4, 5, 6], [127, 7, 8, 9]], np.float32)
REFUSED = (TypeError, ValueError, InvalidInput)
TIERS = ["dram", "dram, bounded", "table, int8", "cache", "cache, int8", "ssd"]


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Face]:
    face = MAKERS[request.param](tmp_path)
    face.insert_or_assign(IDS, ROWS)
    yield face
    face.close()


IDS_WRONG: dict[str, object] = {
    "int32": IDS.astype(np.int32),
    "uint64": IDS.view(np.uint64),
    "float64": IDS.astype(np.float64),
    "bool": np.array([True, False, True]),
    "list": [1, 2, 3],
    "two dimensions": IDS.reshape(1, 3),
    "big endian": IDS.astype(">i8"),
}
ROWS_WRONG: dict[str, object] = {
    "a value too few": ROWS[:, :-1].copy(),
    "a value too many": np.zeros((3, DIM + 1), np.float32),
    "a row too few": ROWS[:2],
    "a row too many": np.zeros((4, DIM), np.float32),
    "float64": ROWS.astype(np.float64),
    "int32": ROWS.astype(np.int32),
    "one dimension": ROWS.ravel(),
    "list": ROWS.tolist(),
}


def refuses(tier: Face, call: Callable[[], object], name: str) -> None:
    with pytest.raises(REFUSED, match=rf"\b{name}\b"):
        call()
    rows, found = tier.find(IDS)
    np.testing.assert_array_equal(rows, ROWS)
    assert np.asarray(found).all()


@pytest.mark.parametrize("kind", IDS_WRONG)
def test_ids_of_the_wrong_kind(tier: Face, kind: str) -> None:
    wrong = IDS_WRONG[kind]
    refuses(tier, lambda: tier.find(wrong), "ids")
    refuses(tier, lambda: tier.insert_or_assign(wrong, ROWS), "ids")
    refuses(tier, lambda: tier.erase(wrong), "ids")
    assert tier.assign is not None
    assign, evict = tier.assign, tier.insert_and_evict
    refuses(tier, lambda: assign(wrong, ROWS), "ids")
    if evict is not None:
        refuses(tier, lambda: evict(wrong, ROWS), "ids")


@pytest.mark.parametrize("kind", ROWS_WRONG)
def test_rows_of_the_wrong_kind(tier: Face, kind: str) -> None:
    wrong = ROWS_WRONG[kind]
    refuses(tier, lambda: tier.insert_or_assign(IDS, wrong), "rows")
    assert tier.assign is not None
    assign, evict = tier.assign, tier.insert_and_evict
    refuses(tier, lambda: assign(IDS, wrong), "rows")
    if evict is not None:
        refuses(tier, lambda: evict(IDS, wrong), "rows")
