"""Rows as they are stored, beside numpy: sizes, rounding, and that what was read back is stored as the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from storage.errors import ConfigError
from storage.rows import Rounding, RowCodec
from storage.specs import ROW_TYPES, TableSpec

ROUNDED = ROW_TYPES[1:]
DIMS = (1, 2, 3, 4, 5, 16, 33, 128)
# Whatever training may give: ordinary values, tiny ones, zeros of both signs.
VALUES = st.one_of(
    st.floats(-4, 4, width=32),
    st.floats(-(2.0**-100), 2.0**-100, width=32),
    st.floats(-60000, 60000, width=32),
    st.sampled_from([0.0, -0.0, 1.0, 2.0**-126, -(2.0**-149), 65504.0]),
)
ROWS = st.tuples(st.integers(0, 6), st.sampled_from(DIMS)).flatmap(
    lambda shape: arrays.arrays(np.float32, shape, elements=VALUES)
)


def expected(row_type: str, rows: np.ndarray) -> np.ndarray:
    """Returns the encoded bytes, row by row, by the definition."""
    stored = []
    for row in rows:
        if row_type == "fp32":
            parts = row.tobytes()
        elif row_type == "fp16":
            parts = row.astype(np.float16).tobytes()
        elif row_type == "bf16":
            bits = row.view(np.uint32).astype(np.uint64)
            parts = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
        else:
            scale = np.abs(row).max() / np.float32(127)
            if scale < np.finfo(np.float32).tiny:
                scale = np.float32(0)
            quotients = np.rint(row / scale) if scale else np.zeros(len(row))
            parts = scale.astype("<f4").tobytes() + quotients.astype(np.int8).tobytes()
        stored.append(parts + bytes(-len(parts) % 4))
    width = TableSpec("t", rows.shape[1], row_type).row_bytes
    return np.frombuffer(b"".join(stored), np.uint8).reshape(len(rows), width)


@given(st.sampled_from(ROW_TYPES), ROWS)
def test_rows_are_encoded_as_they_are_defined(row_type: str, rows: np.ndarray) -> None:
    codec = RowCodec(row_type, rows.shape[1])
    encoded = codec.encode(rows)
    assert encoded.dtype == np.uint8
    np.testing.assert_array_equal(encoded, expected(row_type, rows))
    assert codec.decode(encoded).shape == rows.shape


@given(st.sampled_from(ROW_TYPES), ROWS)
def test_what_was_read_back_is_stored_as_the_same_bytes(row_type: str, rows: np.ndarray) -> None:
    codec = RowCodec(row_type, rows.shape[1])
    encoded = codec.encode(rows)
    np.testing.assert_array_equal(codec.encode(codec.decode(encoded)), encoded)
    assert codec.first_unusual(encoded) is None
    assert codec.first_not_finite(encoded) is None


@given(st.sampled_from(ROUNDED), ROWS)
def test_the_rounding_error_is_bounded_and_told(row_type: str, rows: np.ndarray) -> None:
    codec = RowCodec(row_type, rows.shape[1])
    encoded = codec.encode(rows)
    errors = np.abs(codec.decode(encoded).astype(np.float64) - rows)
    told = Rounding.of(codec, rows, encoded)
    assert told.largest == errors.max(initial=0.0)
    assert told.mean == pytest.approx(errors.mean() if errors.size else 0.0)
    if row_type == "int8":
        most = np.abs(rows).max(axis=1, initial=0.0, keepdims=True) / 254 * (1 + 1e-5) + 1.5e-36
    elif row_type == "fp16":
        most = np.maximum(np.abs(rows) * 2.0**-11, 2.0**-25)
    else:
        most = np.maximum(np.abs(rows) * 2.0**-8, 2.0**-134)
    assert (errors <= most).all()


def test_fp32_is_a_view_and_exact() -> None:
    rows = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    codec = RowCodec("fp32", 3)
    encoded = codec.encode(rows)
    assert np.shares_memory(encoded, rows)
    assert np.shares_memory(codec.decode(encoded), rows)
    assert Rounding.of(codec, rows, encoded) == Rounding(0.0, 0.0)


@pytest.mark.parametrize(("row_type", "dim", "size"), [("fp16", 3, 8), ("bf16", 4, 8), ("int8", 4, 8), ("int8", 5, 12)])
def test_rows_fill_whole_words(row_type: str, dim: int, size: int) -> None:
    assert RowCodec(row_type, dim).row_bytes == TableSpec("t", dim, row_type).row_bytes == size


@pytest.mark.parametrize("row_type", ROUNDED)
def test_rows_that_no_encoder_writes_are_found(row_type: str) -> None:
    codec = RowCodec(row_type, 5)
    encoded = codec.encode(np.random.default_rng(2).standard_normal((300_000, 5)).astype(np.float32))
    place = 262_145
    padded = encoded.copy()
    padded[place, -1] = 1
    assert codec.first_unusual(padded) == place
    infinite = encoded.copy()
    if row_type == "int8":
        infinite[place, :4] = np.frombuffer(np.float32(np.inf).tobytes(), np.uint8)
        far = encoded.copy()
        far[place, 4:9] = 1  # the largest is 127 in every row that was encoded
        assert codec.first_unusual(far) == place
        lowest = encoded.copy()
        lowest[place, 4] = 0x80
        assert codec.first_unusual(lowest) == place
    else:
        infinite[place, 1] = 0x7C if row_type == "fp16" else 0x7F
        infinite[place, 0] = 0x00 if row_type == "fp16" else 0x80
    assert codec.first_not_finite(infinite) == place


def test_a_row_type_that_is_not_is_named() -> None:
    with pytest.raises(ConfigError, match="row_type is 'fp8', expected one of fp32, fp16, bf16, int8"):
        RowCodec("fp8", 4)
    with pytest.raises(ConfigError, match="dim is 0"):
        RowCodec("int8", 0)
