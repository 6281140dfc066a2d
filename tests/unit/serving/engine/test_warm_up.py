"""Sessions are warm before they take requests: golden requests, or what config.pbtxt says."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from serving.engine.warm_up import golden_warm_ups, read_warm_ups
from serving.protocol.signature import ModelSignature
from storage.checkpoint import Golden, GraphOutput
from storage.errors import ConfigError, ReadError
from storage.features import Column, FeatureSpec

SPEC = FeatureSpec.model_validate(
    {
        "inputs": [
            {"name": "user", "dtype": "INT64", "side": "user"},
            {"name": "tags", "dtype": "BYTES", "kind": "list", "missing": "null"},
            {"name": "price", "dtype": "FP32", "width": 2},
        ],
        "features": [
            {"name": "user", "inputs": ["user"], "output": "ids", "table": "user"},
            {
                "name": "tags",
                "inputs": ["tags"],
                "transforms": [{"op": "hash", "seed": 1, "salt": "t"}],
                "output": "ids",
                "table": "tag",
            },
            {"name": "price", "inputs": ["price"], "output": "dense"},
        ],
    }
)
SIGNATURE = ModelSignature.of("m", SPEC, [GraphOutput(name="score", shape=(-1, 1))], 64)


def read(text: str, folder: Path) -> Any:
    proto = model_config_pb2.ModelConfig()
    text_format.Parse(text, proto)
    return read_warm_ups(proto.model_warmup, SIGNATURE, folder)


def sample(more: str = "", user: str = "zero_data: true", count: str = "") -> str:
    return f"""
    model_warmup {{
      name: "first" batch_size: 3 {count}
      inputs {{ key: "user" value {{ data_type: TYPE_INT64 dims: [1] {user} }} }}
      inputs {{ key: "price" value {{ data_type: TYPE_FP32 dims: [2] random_data: true }} }}
      {more}
    }}"""


def test_requests_are_made_of_zeros_random_values_and_files(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    words = b"".join(len(word).to_bytes(4, "little") + word for word in (b"a", b"", b"xyz", b"b", b"c", b"d"))
    (tmp_path / "warmup" / "words").write_bytes(words)
    tags = 'inputs { key: "tags" value { data_type: TYPE_STRING dims: [2] input_data_file: "words" } }'
    (warm_up,) = read(sample(tags, count="count: 7"), tmp_path)
    assert (warm_up.name, warm_up.batch, warm_up.count) == ("first", 3, 7)
    assert warm_up.columns["user"].values.tolist() == [0, 0, 0]
    price = warm_up.columns["price"].values
    assert price.shape == (6,)
    assert ((price >= 0) & (price < 1)).all()
    assert len(set(price.tolist())) == 6
    assert warm_up.columns["tags"].values.tolist() == [b"a", b"", b"xyz", b"b", b"c", b"d"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (sample(count="count: 20000"), r"model_warmup\[0\].count: is 20000, expected 0 to 10000"),
        (sample().replace("batch_size: 3", "batch_size: 65"), r"batch_size: is 65, expected 1 to 64"),
        (sample(user=""), r"inputs\['user'\]: needs zero_data, random_data or input_data_file"),
        (sample(user='input_data_file: "gone"'), "gone: No such file"),
        (sample(user='input_data_file: "../config.pbtxt"'), "expected the name of a file in warmup/"),
        (sample().replace('key: "user"', 'key: "who"'), "'who'"),
        (sample().replace("TYPE_INT64", "TYPE_FP16"), "expected datatype INT64, got FP16"),
        (sample().replace("dims: [2]", "dims: [3]"), r"model_warmup\[0\].inputs: input 'price': expected shape"),
        (
            'model_warmup { inputs { key: "user" value { data_type: TYPE_INT64 dims: [1] zero_data: true } } }',
            "'price'",
        ),
        (sample().replace("dims: [1]", "dims: [1000000000]"), "is over 67108864 bytes"),
    ],
)
def test_a_wrong_field_is_named(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        read(text, tmp_path)
    assert refused.value.field.startswith("model_warmup[0]")


def test_a_file_that_cannot_be_read_now_is_no_error_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "ids").write_bytes(bytes(8))

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(io, "open", fail)
    with pytest.raises(ReadError, match=r"ids: cannot be read now: Input/output error"):
        read(sample(user='input_data_file: "ids"'), tmp_path)


@pytest.mark.parametrize(("rows", "batches"), [(256, [1, 64]), (20, [1, 20]), (1, [1]), (0, [])])
def test_golden_requests_give_one_row_and_a_batch(rows: int, batches: list[int]) -> None:
    columns = {
        "user": Column("INT64", 1, 1, np.array([7])),
        "price": Column("FP32", rows, 2, np.zeros(2 * rows, np.float32)),
    }
    found = golden_warm_ups(Golden(columns, rows, {"score": np.zeros((rows, 1), np.float32)}, 1e-5))
    assert [each.batch for each in found] == batches
    assert all(each.columns["user"].rows == 1 for each in found)
