"""Wrong arrays are refused by name, before anything is read or written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from storage._table import BatchLookup, Lookup, OverlayTable, RowGradients, Table, TrainingTable, step_tables

IDS: Any = np.arange(4, dtype=np.int64)
ROWS = np.zeros((4, 3), np.float32)
FOUND = np.zeros(4, np.uint8)
READ_ONLY = np.zeros((4, 3), np.float32)
READ_ONLY.flags.writeable = False
# Any: they are called with what their types do not allow.
TABLE: Any = Table(3)
TRAINED: Any = TrainingTable(3)
BATCH: Any = BatchLookup([TRAINED], [(0, 1, 0)])
SEQUENCE: Any = BatchLookup([TRAINED], [(0, 2, 5)])
LOOKUP: Any = Lookup([TABLE], [(0, 0, 0)])
OVERLAY: Any = OverlayTable(3)
OVERLAY.stage(7, np.array([5, 6]), None, 1)
ENDS = np.array([0, 4])


def begin(mask: int = 0, **changes: object) -> object:
    given = {"values": IDS, "offsets": ENDS, "outputs": np.zeros((1, 3), np.float32), "masks": None} | changes
    return LOOKUP.begin(1, *([value] for value in given.values()), mask)


def run(**changes: Any) -> None:
    given = {"values": [IDS], "offsets": [ENDS], "weights": [None], "batch": 1, "pooled": ROWS[:1].copy()}
    BATCH.run(**{**given, "sequences": [], "train": True, "threads": 1, **changes})


WRONG: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: TABLE.find([1, 2], ROWS, FOUND), TypeError, "ids: expected .*int64.*got list"),
    (
        lambda: TABLE.find(IDS.astype(np.int32), ROWS, FOUND),
        TypeError,
        "ids: expected .*int64.*got ndarray dtype int32",
    ),
    (lambda: TABLE.find(np.arange(8)[::2], ROWS, FOUND), TypeError, "ids: expected a C-contiguous"),
    (lambda: TABLE.find(IDS.reshape(2, 2), ROWS, FOUND), ValueError, "ids: expected .* 1 dimension, got"),
    (lambda: TABLE.find(IDS, ROWS[:3], FOUND), ValueError, r"out: expected shape \(4, 3\), got \(3, 3\)"),
    (lambda: TABLE.find(IDS, ROWS.astype(np.float64), FOUND), TypeError, "out: expected .*float32"),
    (lambda: TABLE.find(IDS, READ_ONLY, FOUND), TypeError, "out: .*writable.*read-only"),
    (lambda: TABLE.find(IDS, ROWS, FOUND[:2]), ValueError, r"found: expected shape \(4,\), got \(2,\)"),
    (lambda: TABLE.insert_or_assign(IDS, np.zeros((4, 5), np.float32)), ValueError, r"rows: expected shape \(4, 3\)"),
    (lambda: TABLE.insert_or_assign(IDS, ROWS, IDS), TypeError, "freq: expected .*uint8"),
    (lambda: TABLE.assign(IDS, IDS), TypeError, "rows: expected .*float32"),
    (lambda: TABLE.export_batch(0, 0), ValueError, "limit: expected 1 or more"),
    (lambda: Table(0), ValueError, "dim must be 1 to 4096"),
    (lambda: Lookup([TABLE], [(1, 0, 0)]), ValueError, r"features\[0\]: table 1 of 1"),
    (lambda: Lookup([TABLE], [(0, 4, 0)]), ValueError, r"features\[0\]: pooling"),
    (lambda: Lookup([TABLE], [(0, 2, 0)]), ValueError, r"features\[0\]: .*length"),
    (lambda: Lookup([IDS], []), TypeError, "tables: expected RowSource, got ndarray"),
    (lambda: Lookup([TABLE], [], [TABLE]), TypeError, "overlays: expected OverlayTable, got Table"),
    (lambda: Lookup([TABLE], [], [OVERLAY, OVERLAY]), ValueError, "overlays: expected one a table, 1, got 2"),
    (lambda: Lookup([TABLE], [], [OverlayTable(2)]), ValueError, r"overlays\[0\]: dim 2 over a table of dim 3"),
    (lambda: LOOKUP.begin(1, [], [], [], []), ValueError, "outputs: expected 1 entries"),
    (lambda: begin(mask=1), ValueError, "mask: the lookup was made without overlays"),
    (lambda: begin(mask=1 << 63), ValueError, "mask: overlays are numbered 0 to 62"),
    (lambda: LOOKUP.missing_sources(1), ValueError, "table: expected a number below 1"),
    (lambda: OverlayTable(0), ValueError, "dim must be 1 to 4096, got 0"),
    (lambda: OVERLAY.stage(63, IDS, ROWS, 0), ValueError, "overlay: expected a number from 0 to 62, got 63"),
    (lambda: OVERLAY.stage(7, IDS, ROWS, 3), ValueError, "kind: expected 0 row, 1 removed or 2 spilled, got 3"),
    (lambda: OVERLAY.stage(7, IDS, ROWS[:3], 0), ValueError, r"rows: expected shape \(4, 3\)"),
    (lambda: OVERLAY.stage(7, IDS, None, 0), TypeError, "rows: expected .*float32 .*NoneType"),
    (lambda: OVERLAY.stage(7, IDS, ROWS, 2), ValueError, "rows: removed and spilled ids have none"),
    (lambda: OVERLAY.stage(7, np.array([9, 6]), None, 2), ValueError, "overlay 7 takes .* but 6 is in it"),
    (
        lambda: OVERLAY.stage(8, np.array([9, 9]), None, 2),
        ValueError,
        "overlay 8 takes .* but 9 is given twice",
    ),
    (lambda: OVERLAY.find(1, IDS, ROWS, FOUND, IDS), TypeError, "overlays: expected .*uint8"),
    (lambda: OVERLAY.discard(63), ValueError, "overlay: expected a number from 0 to 62"),
    (lambda: OVERLAY.entries(63), ValueError, "overlay: expected a number from 0 to 62"),
    (lambda: OVERLAY.ids(63), ValueError, "overlay: expected a number from 0 to 62"),
    (lambda: begin(values=ROWS), TypeError, r"values\[0\]: expected .*int64"),
    (lambda: begin(offsets=np.array([0, 2, 4])), ValueError, r"offsets\[0\]: expected shape \(2,\)"),
    (lambda: begin(offsets=np.array([0, 3])), ValueError, r"offsets\[0\]: must end at the number of values, 4"),
    (lambda: begin(offsets=np.array([1, 4])), ValueError, r"offsets\[0\]: must start at 0"),
    (lambda: begin(outputs=np.zeros((2, 3), np.float32)), ValueError, r"outputs\[0\]: expected shape \(1, 3\)"),
    (lambda: begin(masks=FOUND), ValueError, r"masks\[0\]: a pooled feature has no mask"),
    (lambda: LOOKUP.missing(1), ValueError, "table: expected a number below 1"),
    (lambda: LOOKUP.finish(), ValueError, "finish: call begin first"),
    (lambda: run(offsets=[]), ValueError, "offsets: expected 1 entries, one a feature, got 0"),
    (lambda: run(offsets=[ENDS[:1]]), ValueError, r"offsets\[0\]: expected shape \(2,\)"),
    (lambda: run(offsets=[np.array([0, 9])]), ValueError, r"offsets\[0\]: must end at the number of values, 4"),
    (lambda: run(offsets=[np.array([2, 4])]), ValueError, r"offsets\[0\]: must start at 0"),
    (lambda: run(values=[ROWS[0]]), TypeError, r"values\[0\]: expected a C-contiguous int64"),
    (lambda: run(pooled=ROWS), ValueError, r"pooled: expected shape \(1, 3\)"),
    (lambda: run(pooled=READ_ONLY[:1]), TypeError, "pooled: expected a C-contiguous, writable"),
    (lambda: SEQUENCE.run([IDS], [ENDS], [None], 1, None, [], True, 1), ValueError, "sequences: there are too few"),
    (lambda: BATCH.gradients(1), ValueError, "table: there is no table 1"),
    (lambda: BatchLookup([TRAINED], [(1, 0, 0)]), ValueError, r"features\[0\]: there is no table 1"),
    (lambda: BatchLookup([TRAINED], [(0, 4, 0)]), ValueError, "pooling: expected 0 to 3"),
    (lambda: BatchLookup([TRAINED], [(0, 2, 0)]), ValueError, r"features\[0\]: the length must be 1 or more"),
    (lambda: RowGradients(TRAINED, IDS, ROWS[:, :2]), TypeError, "grads: expected a C-contiguous"),
    (lambda: step_tables([TRAINED], [], "sgd", {}, 1), ValueError, "gradients: expected one list a table"),
    (lambda: step_tables([TRAINED], [[]], "adam", {}, 1), ValueError, "the table was made for sgd, not for adam"),
    (lambda: step_tables([TRAINED], [[]], "best", {}, 1), ValueError, "optimizer: expected sgd, .* got 'best'"),
    (lambda: TrainingTable(0), ValueError, "dim must be 1 to 4096"),
    (lambda: TrainingTable(3, admit_after=0), ValueError, "admit_after: must be 1 or more"),
    (lambda: TrainingTable(3, rows=("even", 1.0)), ValueError, "initializer: expected constant, .* got 'even'"),
    (lambda: TrainingTable(3, absent=("normal", -1.0)), ValueError, "initializer: the scale must be 0 or more"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_a_wrong_argument_is_named(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_read_only_inputs_are_fine() -> None:
    table = Table(3)
    ids = IDS.copy()
    ids.flags.writeable = False
    table.insert_or_assign(ids, READ_ONLY)
    assert table.size() == 4


def test_supplying_what_was_not_asked_for_is_refused() -> None:
    lookup = Lookup([Table(3)], [(0, 0, 0)])
    lookup.begin(1, [IDS], [ENDS], [np.zeros((1, 3), np.float32)], [None])
    with pytest.raises(ValueError, match=r"rows: expected shape \(4, 3\), got \(3, 3\)"):
        lookup.supply(0, ROWS[:3], FOUND)
    with pytest.raises(ValueError, match="state: 0 absent"):
        lookup.supply(0, ROWS, FOUND + np.uint8(9))
    with pytest.raises(ValueError, match="call supply first"):
        lookup.finish()
