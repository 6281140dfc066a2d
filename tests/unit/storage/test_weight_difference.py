"""A difference of weights gives back the weights to the bit, takes few bytes, and refuses what nobody writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.checkpoint import weight_difference
from storage.checkpoint.tensors import TensorFile, write_tensors
from storage.checkpoint.weight_difference import DIFFERENCE, PLANES, SPARSE, WHOLE, read_difference, write_difference
from storage.errors import EmberlineError, IntegrityError, UnsafeArtifact

Weights = dict[str, np.ndarray]


def _random(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    array: np.ndarray = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8).view(dtype).reshape(shape)
    return array.view(np.uint8) % 2 == 0 if np.dtype(dtype) == np.bool_ else array


def _changed(rng: np.random.Generator, weights: Weights, share: float) -> Weights:
    result = {}
    for name, array in weights.items():
        other = _random(rng, array.dtype.str, array.shape)
        result[name] = np.where(rng.random(array.shape) < share, other, array)
    return result


def _written(path: Path, before: Weights, after: Weights) -> bytes | None:
    path.unlink(missing_ok=True)
    return None if write_difference(path, before, after) is None else path.read_bytes()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.001, 0.05, 0.2, 0.5]),
    st.lists(
        st.tuples(
            st.sampled_from(["<f4", "<u2", "<f2", "<f8", "<i8", "?", "u1"]),
            st.sampled_from([(), (0,), (7,), (3, 1000), (5001,)]),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_weights_come_back_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, seed: int, share: float, kinds: list[tuple[str, tuple[int, ...]]]
) -> None:
    rng = np.random.default_rng(seed)
    before = {f"state.w{number}": _random(rng, *kind) for number, kind in enumerate(kinds)}
    after = _changed(rng, before, share)
    kept = {name: array.copy() for name, array in before.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_difference, "BLOCK_BYTES", 4096)  # several blocks a weight
        data = _written(tmp_path_factory.mktemp("w") / DIFFERENCE, before, after)
        if data is None:
            return  # not smaller
        found = read_difference(data, before)
    assert {**before, **found}.keys() == after.keys()
    for name, array in after.items():
        result = found.get(name, before[name])
        assert (result.dtype, result.shape) == (array.dtype, array.shape)
        assert result.tobytes() == array.tobytes()
        assert before[name].tobytes() == kept[name].tobytes(), "the weights that were there changed"
        assert (name in found) == (array.tobytes() != kept[name].tobytes())


def test_few_changes_take_few_bytes_and_many_are_not_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / DIFFERENCE
    weights = {"state.w": rng.standard_normal(4 << 20, np.float32).view(np.uint32) >> np.uint32(16)}
    before = {"state.w": weights["state.w"].astype(np.uint16)}
    after = _changed(rng, before, 0.02)
    data = _written(path, before, after)
    assert data is not None
    assert len(data) <= 0.05 * before["state.w"].nbytes
    # As a step of Adam changes all float32 values: the low bits of each.
    floats = {"state.w": rng.standard_normal(1 << 20, np.float32)}
    stepped = {"state.w": floats["state.w"] * np.float32(1.0001)}
    data = _written(path, floats, stepped)
    assert data is not None
    assert len(data) <= 0.75 * floats["state.w"].nbytes
    assert read_difference(data, floats)["state.w"].tobytes() == stepped["state.w"].tobytes()
    assert _written(path, floats, {"state.w": _random(rng, "<f4", (1 << 20,))}) is None
    assert not path.exists()


@pytest.fixture
def file(tmp_path: Path) -> tuple[bytes, Weights]:
    """Returns a difference of two weights, one block each, and the weights that it is a difference to."""
    rng = np.random.default_rng(1)
    before = {"state.a": _random(rng, "<f4", (300,)), "state.b": _random(rng, "<u2", (300,))}
    after = {name: array.copy() for name, array in before.items()}
    after["state.a"][[3, 200]] += 1
    after["state.b"] ^= np.uint16(3)
    data = _written(tmp_path / DIFFERENCE, before, after)
    assert data is not None
    return data, before


def _resaved(tmp_path: Path, data: bytes, **changes: np.ndarray | None) -> bytes:
    arrays = dict(TensorFile.from_bytes(DIFFERENCE, data).arrays)
    for key, value in changes.items():
        name = key.replace("_", ".", 2)
        if value is None:
            del arrays[name]
        else:
            arrays[name] = value
    (tmp_path / "changed").unlink(missing_ok=True)
    write_tensors(tmp_path / "changed", arrays)
    return (tmp_path / "changed").read_bytes()


def _frame(size: int) -> np.ndarray:
    return np.frombuffer(pa.Codec("zstd").compress(bytes(size), asbytes=True), np.uint8)


def test_a_block_that_decompresses_to_more_is_refused_before_it_does(
    tmp_path: Path, file: tuple[bytes, Weights]
) -> None:
    data, before = file
    bomb = _frame(1 << 30)
    assert len(bomb) < 1 << 20
    for form, size in ((WHOLE, 1200), (PLANES, 1200), (SPARSE, 16), (SPARSE, 8)):
        index = np.array([[form, len(bomb), size]])
        with pytest.raises(IntegrityError, match=r"'state.a', block 0: .*too small"):
            read_difference(_resaved(tmp_path, data, index_state_a=index, blocks_state_a=bomb), before)
    for form, size in ((WHOLE, 1 << 30), (WHOLE, 1204), (SPARSE, 301 * 8), (SPARSE, 12), (SPARSE, 0), (9, 1200)):
        index = np.array([[form, len(bomb), size]])
        with pytest.raises(UnsafeArtifact, match=r"'state\.a'"):
            read_difference(_resaved(tmp_path, data, index_state_a=index, blocks_state_a=bomb), before)


def test_what_nobody_writes_is_refused(tmp_path: Path, file: tuple[bytes, Weights]) -> None:
    data, before = file
    short = _frame(1199)
    behind = np.frombuffer(pa.Codec("zstd").compress(b"\xff" * 8, asbytes=True), np.uint8)
    for changes, said in (
        ({"index_state_a": None}, "an index and blocks of each weight"),
        ({"index_state_a": np.zeros((2, 3), np.int64)}, r"the index is \[2, 3\], expected \[1, 3\]"),
        ({"index_state_a": np.array([[WHOLE, 5, 1200]])}, "do not make its"),
        ({"index_state_a": np.array([[-1, 0, 0]])}, "do not make its"),
        ({"index_state_a": np.array([[WHOLE, len(short), 1200]]), "blocks_state_a": short}, "block 0"),
        ({"index_state_a": np.array([[SPARSE, len(behind), 8]]), "blocks_state_a": behind}, "lies behind its end"),
    ):
        with pytest.raises((UnsafeArtifact, IntegrityError), match=said):
            read_difference(_resaved(tmp_path, data, **changes), before)
    with pytest.raises(UnsafeArtifact, match=r"the version has no weight 'state\.b'"):
        read_difference(data, {"state.a": before["state.a"]})
    with pytest.raises(UnsafeArtifact, match=r"'state\.a'"):
        read_difference(data, {**before, "state.a": before["state.a"][:100]})


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_damaged_bytes_never_do_more_than_raise(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = np.random.default_rng(seed)
    before = {"state.a": _random(rng, "<f4", (200,)), "state.b": _random(rng, "<u2", (999,))}
    data = _written(tmp_path_factory.mktemp("w") / DIFFERENCE, before, _changed(rng, before, 0.05))
    assert data is not None
    damaged = bytearray(data)
    for place in rng.integers(0, len(damaged), 1 + seed % 5):
        damaged[place] ^= 1 << int(rng.integers(0, 8))
    cut = bytes(damaged[: rng.integers(0, len(damaged) + 1)]) if seed % 3 == 0 else bytes(damaged)
    try:
        found = read_difference(cut, before)
    except EmberlineError:
        return
    for name, array in found.items():
        assert array.shape == before[name].shape
