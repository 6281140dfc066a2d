"""Requests of the load test are drawn from files of rows, and are the same in all three forms."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadtest.bodies import binary_body, grpc_request, json_body
from loadtest.rows import InputMetadata, RequestSource, Tensor

INPUTS = [
    InputMetadata("user", "INT64", False),
    InputMetadata("tags", "BYTES", True),
    InputMetadata("price", "FP32", False),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    table = pa.table(
        {
            "user": pa.array([-1, 2**63 - 1, None], pa.int64()),
            "tags": [["a", "bcd"], [], ["é"]],
            "price": pa.array([0.5, 1.5, 2.5], pa.float32()),
            "label": [0, 1, 0],
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def by_name(tensors: list[Tensor]) -> dict[str, Tensor]:
    return {tensor.name: tensor for tensor in tensors}


def test_the_same_seed_draws_the_same_requests(data: Path) -> None:
    first, second = (RequestSource(data, INPUTS, items=8, seed=3) for _ in range(2))
    for _ in range(3):
        for a, b in zip(first.draw(), second.draw(), strict=True):
            assert a.name == b.name
            assert np.array_equal(a.values, b.values)


def test_lists_are_padded_with_lengths_and_nulls_are_marked(data: Path) -> None:
    tensors = by_name(RequestSource(data, INPUTS, items=64, seed=1).draw())
    assert set(tensors) == {"user", "user.valid", "tags", "tags.lengths", "price"}
    assert tensors["tags"].values.shape == (64, 2)
    lengths = tensors["tags.lengths"].values
    assert set(lengths.ravel().tolist()) == {0, 1, 2}
    assert (tensors["tags"].values[lengths[:, 0] == 1][:, 0] == "é".encode()).all()
    assert not tensors["user.valid"].values.all()
    assert set(tensors["user"].values[tensors["user.valid"].values].tolist()) == {-1, 2**63 - 1}


def test_a_missing_column_is_named(data: Path) -> None:
    with pytest.raises(ValueError, match=r"wants the column 'item', which is not there; the file has: user"):
        RequestSource(data, [*INPUTS, InputMetadata("item", "INT64", False)], items=1, seed=1)


def test_all_three_forms_hold_the_same_values(data: Path) -> None:
    tensors = RequestSource(data, INPUTS, items=4, seed=5).draw()
    body, header_bytes = binary_body(tensors)
    header, rest = json.loads(body[:header_bytes]), body[header_bytes:]
    plain = json.loads(json_body(tensors))
    request = grpc_request("m", tensors)
    at = 0
    for number, tensor in enumerate(tensors):
        size = header["inputs"][number]["parameters"]["binary_data_size"]
        assert rest[at : at + size] == request.raw_input_contents[number]
        at += size
        assert plain["inputs"][number]["shape"] == list(request.inputs[number].shape) == list(tensor.values.shape)
        data_values = plain["inputs"][number]["data"]
        assert len(data_values) == tensor.values.size
        if tensor.dtype == "INT64":
            assert data_values == tensor.values.ravel().tolist()
    assert at == len(rest)


def drawn(data: Path, *inputs: InputMetadata) -> dict[str, list[object]]:
    tensors = RequestSource(data, inputs, items=40, seed=1).draw()
    return {tensor.name: sorted(set(tensor.values.ravel().tolist())) for tensor in tensors}


def test_columns_have_the_names_and_units_that_the_server_says(tmp_path: Path) -> None:
    table = pa.table(
        {
            "user_id": [7, 8],
            "at": pa.array([1_999, -1], pa.timestamp("ns")),
            "day": pa.array([1, 2], pa.date32()),
            "seen": pa.array([[1], [2, 3]], pa.list_(pa.timestamp("s"))),
            "ms": [5, 6],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    times: dict[str, Any] = {"column_type": "timestamp"}
    found = drawn(
        tmp_path / "a.parquet",
        InputMetadata("user", "INT64", False, "user_id", "integer"),
        InputMetadata("at", "INT64", False, **times),
        InputMetadata("day", "INT64", False, **times),
        InputMetadata("seen", "INT64", True, **times),
        InputMetadata("then", "FP64", False, "ms", unit="ms", **times),
    )
    assert found["user"] == [7, 8]
    assert found["at"] == [-1, 1]
    assert found["day"] == [86_400_000_000, 2 * 86_400_000_000]
    assert found["seen"] == [0, 1_000_000, 2_000_000, 3_000_000]
    assert found["then"] == [5_000.0, 6_000.0]


@pytest.mark.parametrize("column_type", ["timestamp", ""])
def test_another_type_than_in_training_is_refused(tmp_path: Path, column_type: str) -> None:
    kind = pa.int64() if column_type else pa.timestamp("us")
    pq.write_table(pa.table({"at": pa.array([1], kind)}), tmp_path / "a.parquet")
    expected = r"timestamp\[us\], and it is not known what the model was trained on"
    if column_type:
        expected = r"holds int64 \(integer\); expected timestamp, as in training"
    with pytest.raises(ValueError, match=expected):
        drawn(tmp_path, InputMetadata("at", "INT64", False, "", column_type))


def test_hive_partitions_are_columns(tmp_path: Path) -> None:
    for day, region, user in (("2026-01-02", "07", 1), ("2026-01-01", "b%2Fc", 2)):
        folder = tmp_path / f"date={day}" / f"region={region}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"user": [user]}), folder / "part-0.parquet")
    (tmp_path / "_SUCCESS").touch()
    found = drawn(
        tmp_path,
        InputMetadata("user", "INT64", False),
        InputMetadata("day", "INT64", False, "date", "timestamp"),
        InputMetadata("region", "BYTES", False),
    )
    assert found["user"] == [1, 2]
    assert found["region"] == [b"07", b"b/c"]
    assert found["day"] == [20_454 * 86_400_000_000, 20_455 * 86_400_000_000]
    south = tmp_path / "date=2026-01-02" / "region=07"
    for path in (south, south / "part-0.parquet"):
        assert drawn(path, InputMetadata("region", "INT64", False)) == {"region": [7]}
    assert drawn(tmp_path, InputMetadata("region", "BYTES", False)) == {"region": [b"07", b"b/c"]}


def test_every_format_that_the_trainer_reads_gives_the_same_requests(tmp_path: Path, data: Path) -> None:
    text = 'user,tags,price\n-1,a|bcd,0.5\n9223372036854775807,"",1.5\n,é,2.5\n'
    (tmp_path / "rows.csv").write_text(text, encoding="utf-8")
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(text.encode()))
    first = RequestSource(data, INPUTS, items=8, seed=3).draw()
    for place in (str(tmp_path / "rows.csv"), f"{tmp_path}/pack*", f"file://{tmp_path}/rows.csv"):
        for a, b in zip(first, RequestSource(place, INPUTS, items=8, seed=3).draw(), strict=True):
            assert (a.name, a.dtype) == (b.name, b.dtype)
            assert np.array_equal(a.values, b.values)


def test_lists_of_lists_are_sent_as_one_list(tmp_path: Path) -> None:
    pq.write_table(pa.table({"seen": [[[1, 2], [3]], [[], [4]]]}), tmp_path / "rows.parquet")
    found = by_name(
        RequestSource(tmp_path, [InputMetadata("seen", "INT64", True, flatten=True)], items=40, seed=1).draw()
    )
    assert set(found["seen.lengths"].values.ravel().tolist()) == {1, 3}
    assert {tuple(row) for row in found["seen"].values.tolist()} == {(1, 2, 3), (4, 0, 0)}


def test_vectors_have_their_width_and_nulls_are_marked_in_each_place(tmp_path: Path) -> None:
    table = pa.table({"v": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))})
    pq.write_table(table, tmp_path / "rows.parquet")
    found = by_name(RequestSource(tmp_path, [InputMetadata("v", "FP32", False, width=2)], items=40, seed=1).draw())
    assert found["v"].values.shape == found["v.valid"].values.shape == (40, 2)
    assert {(*a, *b) for a, b in zip(found["v"].values.tolist(), found["v.valid"].values.tolist(), strict=True)} == {
        (1.0, 2.0, True, True),
        (0.0, 0.0, False, False),
    }


def test_a_mixture_and_folders_that_are_no_partitions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no \*.parquet file"):
        drawn(tmp_path, *INPUTS)
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(ValueError, match=r"a.json; expected Parquet, CSV, .*got a file of the kind JSON"):
        drawn(tmp_path, *INPUTS)
    (tmp_path / "a.json").unlink()
    (tmp_path / "more").mkdir()
    with pytest.raises(ValueError, match=r"more: a folder inside of the data, which is no partition"):
        drawn(tmp_path, *INPUTS)
