"""Our safetensors files are everybody's safetensors files, and a planted header does not get in."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from storage.checkpoint.tensors import DTYPES, TensorFile, write_bytes, write_tensors
from storage.errors import CheckpointError, UnsafeArtifact
from tests.support.examples import examples

ARRAYS = {
    "ids": np.array([-(2**63), -1, 0, 2**63 - 1]),
    "rows": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3),
    "freq": np.array([0, 1, 2, 255], np.uint8),
    "mask": np.array([[True], [False]]),
    "scalar": np.array(3.5),
    "empty": np.empty((0, 7), np.float32),
}


def test_what_was_written_is_read_back_and_by_the_public_reader_too(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    written = write_tensors(path, ARRAYS)
    assert written.size == path.stat().st_size
    assert written.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    file = TensorFile.open(path)
    assert set(file.arrays) == set(ARRAYS)
    with safe_open(path, framework="np") as public:
        assert set(public.keys()) == set(ARRAYS)
        for name, array in ARRAYS.items():
            for got in (file.arrays[name], public.get_tensor(name)):
                assert got.dtype == array.dtype
                np.testing.assert_array_equal(got, array)
            assert file.arrays[name].flags.aligned
            assert not file.arrays[name].flags.writeable


def test_files_of_the_public_writer_are_read(tmp_path: Path) -> None:
    save_file(ARRAYS, tmp_path / "b.safetensors")
    for name, array in TensorFile.open(tmp_path / "b.safetensors").arrays.items():
        np.testing.assert_array_equal(array, ARRAYS[name])


@settings(max_examples=examples(40), deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.tuples(st.sampled_from(sorted(set(DTYPES) - {"BF16", "BOOL"})), st.lists(st.integers(0, 4), max_size=3)),
        max_size=5,
    )
)
def test_any_names_types_and_shapes_survive(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    arrays = {
        name: np.arange(int(np.prod(shape))).astype(DTYPES[dtype]).reshape(shape)
        for name, (dtype, shape) in content.items()
    }
    path = tmp_path_factory.mktemp("t") / "x.safetensors"
    write_tensors(path, arrays)
    read = TensorFile.open(path).arrays
    assert set(read) == set(arrays)
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"1")
    with pytest.raises(FileExistsError):
        write_bytes(tmp_path / "a", b"2")
    assert (tmp_path / "a").read_bytes() == b"1"


def test_types_that_have_no_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="complex128"):
        write_tensors(tmp_path / "a", {"x": np.zeros(2, complex)})


def raw(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "too short"),
        (raw({"a": entry()}, bytes(8), length=2**63), "header claims"),
        (raw({"a": entry()}, bytes(8), length=10_000), "header claims"),
        (raw(b'{"a":', bytes(8)), "not plain JSON"),
        (raw(b"[" * 5000, bytes(8)), "deeper"),
        (raw([1]), "not a JSON object"),
        (raw({"__metadata__": {"run": "__import__('os')"}, "a": entry()}, bytes(8)), "__metadata__"),
        (raw(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":1}', bytes(8)), "repeats"),
        (raw({"a": entry(dtype="PICKLE")}, bytes(8)), "PICKLE"),
        (raw({"a": entry(code="x")}, bytes(8)), "keys"),
        (raw({"a": entry(shape=[3])}, bytes(8)), "does not fill"),
        (raw({"a": entry(shape=[-2])}, bytes(8)), "shape"),
        (raw({"a": entry(shape=[2**40, 2**40])}, bytes(8)), "does not fill"),
        (raw({"a": entry(shape=[True, 2])}, bytes(8)), "shape"),
        (raw({"a": entry(data_offsets=[4, 12])}, bytes(12)), "gap or overlap"),
        (raw({"a": entry(), "b": entry()}, bytes(8)), "gap or overlap"),
        (raw({"a": entry(data_offsets=[0])}, bytes(8)), "offsets"),
        (raw({"a": entry(data_offsets=[0, 1e9])}, bytes(8)), "offsets"),
        (raw({"a": entry()}, bytes(4)), "ends at 8"),
        (raw({"a": entry()}, bytes(9)), "behind the last"),
        (raw({"a": entry(dtype="BOOL", shape=[8])}, b"\2" * 8), "BOOL"),
    ],
)
def test_a_planted_header_is_refused_by_name(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "evil.safetensors"
    path.write_bytes(data)
    with pytest.raises(UnsafeArtifact, match=r"evil\.safetensors") as caught:
        TensorFile.open(path)
    assert reason in str(caught.value)
