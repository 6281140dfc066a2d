"""Row types beside numpy: what is stored, what comes back from every table, whichever instruction set works."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from storage._table import Lookup, OverlayTable, Table, decode_rows, encode_rows, isa, isas, row_bytes, set_isa

TYPES = ("fp32", "fp16", "bf16", "int8")
DIMS = (1, 3, 8, 16, 33, 128)


@pytest.fixture(params=isas())
def every_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    best = isa()
    set_isa(request.param)
    yield request.param
    set_isa(best)


def random_rows(n: int, dim: int) -> np.ndarray:
    rng = np.random.default_rng(dim)
    rows = rng.standard_normal((n, dim)) * 10.0 ** rng.integers(-6, 4, (n, 1))
    rows[0] = 0
    return rows.astype(np.float32)


def expected(row_type: str, rows: np.ndarray) -> np.ndarray:
    """Returns the values that a row stands for, by numpy alone."""
    if row_type == "fp32":
        return rows
    if row_type == "fp16":
        return rows.astype(np.float16).astype(np.float32)
    if row_type == "bf16":
        bits = rows.view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    scale = np.abs(rows).max(axis=1, keepdims=True) / np.float32(127)
    steps = np.rint(np.divide(rows, scale, out=np.zeros_like(rows), where=scale > 0))
    return scale * steps.astype(np.int8)


@pytest.mark.parametrize("row_type", TYPES)
@pytest.mark.parametrize("dim", DIMS)
def test_rows_come_back_as_numpy_rounds_them(row_type: str, dim: int, every_isa: str) -> None:
    rows = random_rows(50, dim)
    encoded = encode_rows(row_type, rows)
    assert encoded.shape == (50, row_bytes(row_type, dim))
    np.testing.assert_array_equal(decode_rows(row_type, dim, encoded), expected(row_type, rows))
    np.testing.assert_array_equal(encode_rows(row_type, decode_rows(row_type, dim, encoded)), encoded)


@pytest.mark.parametrize("row_type", TYPES)
@pytest.mark.parametrize("dim", [3, 16, 64])
def test_a_table_takes_values_and_encoded_rows_alike(row_type: str, dim: int, every_isa: str) -> None:
    rows, ids = random_rows(300, dim), np.arange(300) * 7919
    encoded = encode_rows(row_type, rows)
    values, bytes_ = Table(dim, row_type=row_type), Table(dim, row_type=row_type)
    assert (values.row_type, values.row_bytes) == (row_type, row_bytes(row_type, dim))
    values.insert_or_assign(ids, rows)
    bytes_.insert_or_assign(ids, encoded[::-1].copy())
    assert bytes_.assign(ids, encoded) == 300
    out, found = np.empty((300, dim), np.float32), np.empty(300, np.uint8)
    for table in (values, bytes_):
        assert table.find(ids, out, found) == 300
        np.testing.assert_array_equal(out, expected(row_type, rows))
        _, some, exported, _ = table.export_encoded(0, 1000)
        np.testing.assert_array_equal(exported[np.argsort(some)], encoded)
        _, some, exported_rows, _ = table.export_batch(0, 1000)
        np.testing.assert_array_equal(exported_rows[np.argsort(some)], expected(row_type, rows))
        table.check_integrity()


@pytest.mark.parametrize("row_type", TYPES)
def test_a_lookup_pools_decoded_rows_wherever_they_come_from(row_type: str, every_isa: str) -> None:
    dim, n = 20, 60
    rows = random_rows(n, dim)
    truth = expected(row_type, rows)
    table, overlay = Table(dim, row_type=row_type), OverlayTable(dim, row_type=row_type)
    table.insert_or_assign(np.arange(0, 20), rows[:20])
    overlay.stage(0, np.arange(20, 40), encode_rows(row_type, rows[20:40]), 0)
    overlay.stage(0, np.arange(10, 15), rows[50:55], 0)
    shown = np.concatenate([truth[:10], truth[50:55], truth[15:]])
    lookup = Lookup([table], [(0, 0, 0), (0, 3, 0), (0, 2, 4), (0, 1, 0)], [overlay])
    rng = np.random.default_rng(1)
    offsets = np.array([0, 1, 1, 30, 100])
    values, weights = rng.integers(0, 45, 100), rng.standard_normal(100).astype(np.float32)
    outputs = [np.empty((4, dim), np.float32) for _ in range(2)]
    outputs += [np.empty((4, 4, dim), np.float32), np.empty((4, dim), np.float32)]
    masks = [None, None, np.empty((4, 4), np.uint8), None]
    lookup.begin(4, [values] * 4, [offsets] * 4, outputs, masks, 1, [None, weights, None, None])
    late = lookup.missing(0)
    assert set(late.tolist()) == {i for i in values.tolist() if i >= 40}
    lookup.supply(0, encode_rows(row_type, rows[late]), np.ones(len(late), np.uint8))
    lookup.finish()
    for b in range(4):
        bag = slice(offsets[b], offsets[b + 1])
        plain, weighted = np.zeros(dim, np.float32), np.zeros(dim, np.float32)
        for i, weight in zip(values[bag], weights[bag], strict=True):
            plain += shown[i]
            weighted += weight * shown[i]
        np.testing.assert_array_equal(outputs[0][b], plain)
        np.testing.assert_array_equal(outputs[1][b], weighted)
        np.testing.assert_array_equal(outputs[3][b], plain / np.float32(max(1, len(values[bag]))))
        used = values[bag][:4]
        np.testing.assert_array_equal(outputs[2][b, : len(used)], shown[used])
        assert masks[2] is not None
        assert masks[2][b].tolist() == [1] * len(used) + [0] * (4 - len(used))


def test_supplied_values_count_as_they_are() -> None:
    table = Table(2, row_type="int8")
    lookup = Lookup([table], [(0, 0, 0)])
    out = np.empty((1, 2), np.float32)
    lookup.begin(1, [np.array([1, 2])], [np.array([0, 2])], [out], [None])
    lookup.supply(0, np.array([[0.1, 0.2], [1, 2]], np.float32), np.array([1, 1], np.uint8))
    lookup.finish()
    assert out.tolist() == [[np.float32(0.1) + np.float32(1), np.float32(0.2) + np.float32(2)]]


def test_what_cannot_be_is_refused_by_name() -> None:
    table = Table(3, row_type="int8")
    with pytest.raises(ValueError, match="row 1 has a value that is not finite at 2"):
        table.insert_or_assign(np.arange(2), np.array([[1, 2, 3], [1, 2, np.inf]], np.float32))
    assert table.size() == 0
    with pytest.raises(ValueError, match=r"rows: expected shape \(2, 8\), got \(2, 3\)"):
        table.insert_or_assign(np.arange(2), np.zeros((2, 3), np.uint8))
    with pytest.raises(ValueError, match="row_type: expected fp32, fp16, bf16 or int8, got fp8"):
        Table(3, row_type="fp8")
    with pytest.raises(ValueError, match="extra: only fp32 rows"):
        Table(3, extra=1, row_type="fp16")
    with pytest.raises(ValueError, match=r"overlays\[0\]: rows of fp16 over a table of int8"):
        Lookup([table], [], [OverlayTable(3, row_type="fp16")])
    with pytest.raises(ValueError, match="isa: expected one of portable"):
        set_isa("abacus")
