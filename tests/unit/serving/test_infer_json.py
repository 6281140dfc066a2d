from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.protocol.signature import ModelSignature
from serving.protocol.tensors import InferRequest, RequestedOutput
from serving.protocol.v2 import decode_request as decode_header
from serving.protocol.v2 import encode_response, read_header
from serving.repository.regions import SharedRegions
from storage.errors import InvalidInput, Unsupported

REGIONS = SharedRegions(1 << 20)


def decode_request(signature: ModelSignature, body: bytes, header_length: int | None) -> InferRequest:
    return decode_header(signature, read_header(body, header_length), REGIONS)


def json_request(**changes: Any) -> bytes:
    item = {"name": "item", "shape": [2, 1], "datatype": "INT64", "data": [1, 2]}
    return json.dumps({"inputs": [item], **changes}).encode()


def with_input(**changes: Any) -> bytes:
    entry = {"name": "item", "shape": [2, 1], "datatype": "INT64", "data": [1, 2], **changes}
    return json.dumps({"inputs": [{k: v for k, v in entry.items() if v is not None}]}).encode()


def binary_request(
    dtype: str, shape: list[int], payload: bytes, size: Any = None, name: str = "item"
) -> tuple[bytes, int]:
    parameters = {"binary_data_size": len(payload) if size is None else size}
    entry = {"name": name, "shape": shape, "datatype": dtype, "parameters": parameters}
    header = json.dumps({"inputs": [entry]}).encode()
    return header + payload, len(header)


def test_json_and_binary_inputs_mix(signature: ModelSignature) -> None:
    ids = np.array([2**63 - 1, -1], "<i8").tobytes()
    header = json.dumps(
        {
            "id": "r1",
            "inputs": [
                {"name": "item", "shape": [2, 1], "datatype": "INT64", "parameters": {"binary_data_size": 16}},
                {"name": "user", "shape": [1, 1], "datatype": "INT32", "data": [3]},
            ],
            "outputs": [{"name": "like", "parameters": {"binary_data": True}}, {"name": "score"}, {"name": "like"}],
        }
    ).encode()
    request = decode_request(signature, header + ids, len(header))
    assert request.id == "r1"
    assert request.tensors["item"].values.tolist() == [2**63 - 1, -1]
    assert [(o.index, o.binary) for o in request.outputs] == [(1, True), (0, False)]


def test_keys_that_the_protocol_does_not_have_are_ignored(signature: ModelSignature) -> None:
    plain = decode_request(signature, json_request(outputs=[{"name": "score"}]), None)
    more = json.loads(with_input(datatype_hint="x", dims=[1]))
    more |= {"model_name": "ranker", "outputs": [{"name": "score", "datatype": "FP32"}]}
    request = decode_request(signature, json.dumps(more).encode(), None)
    assert request.outputs == plain.outputs
    assert request.tensors.keys() == plain.tensors.keys()


def test_all_outputs_follow_binary_data_output(signature: ModelSignature) -> None:
    request = decode_request(signature, json_request(parameters={"binary_data_output": True}), None)
    assert [(o.index, o.binary) for o in request.outputs] == [(0, True), (1, True)]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"[]", "body"),
        (b"", "body"),
        (b"{}", "inputs"),
        (json_request(inputs={}), "inputs"),
        (json_request(inputs=[1]), "inputs"),
        (json_request(inputs=[{"name": 3}]), "inputs"),
        (json_request(id=7), "id"),
        (json_request(id="x" * 5000), "id"),
        (json_request(outputs=[{"name": "scor"}]), "scor"),
        (json_request(outputs=3), "outputs"),
        (json_request(parameters={"a": {}}), "a"),
        (json_request(parameters={"timeout": -1}), "timeout"),
        (json_request(parameters={"timeout": "soon"}), "timeout"),
        (json_request(parameters={"binary_data_output": 1}), "binary_data_output"),
        (with_input(name="itme"), "itme"),
        (with_input(datatype="INT8"), "item"),
        (with_input(datatype="BYTES", data=["a", "b"]), "item"),
        (with_input(datatype="FP32"), "item"),
        (with_input(datatype=None), "item"),
        (with_input(shape=None), "item"),
        (with_input(shape=[]), "item"),
        (with_input(shape=[-1, 1]), "item"),
        (with_input(shape=["2", 1]), "item"),
        (with_input(shape=[True, 2]), "item"),
        (with_input(shape=[2.0, 1]), "item"),
        (with_input(shape=[2**40, 1]), "item"),
        (with_input(shape=[2**62, 2**62]), "item"),
        (with_input(shape=[1] * 9), "item"),
        (with_input(data=None), "item"),
        (with_input(parameters={"binary_data_size": 0}), "item"),
    ],
)
def test_a_bad_request_is_refused_by_field(signature: ModelSignature, body: bytes, field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        decode_request(signature, body, None)
    assert raised.value.field == field


def test_an_unknown_input_is_answered_with_the_nearest_name(signature: ModelSignature) -> None:
    with pytest.raises(InvalidInput, match="did you mean 'item'"):
        decode_request(signature, with_input(name="itme"), None)


def test_an_input_may_stand_only_once(signature: ModelSignature) -> None:
    entry = {"name": "item", "shape": [1, 1], "datatype": "INT64", "data": [1]}
    with pytest.raises(InvalidInput, match="twice"):
        decode_request(signature, json.dumps({"inputs": [entry, entry]}).encode(), None)


@pytest.mark.parametrize(
    ("dtype", "shape", "payload", "size"),
    [
        ("INT64", [2, 1], b"\0" * 8, None),
        ("INT64", [2**40, 1], b"\0" * 8, None),
        ("INT64", [2**61, 8], b"", None),
        ("INT64", [1, 1], b"\0" * 16, 8),
        ("INT64", [1, 1], b"\0" * 8, 9),
        ("INT64", [1, 1], b"\0" * 8, -8),
        ("INT64", [1, 1], b"\0" * 8, "8"),
        ("INT64", [1, 1], b"\0" * 8, True),
        ("INT64", [1, 1], b"\0" * 8, 2**64),
    ],
)
def test_a_binary_tensor_must_have_the_bytes_of_its_shape(
    signature: ModelSignature, dtype: str, shape: list[int], payload: bytes, size: Any
) -> None:
    body, header_length = binary_request(dtype, shape, payload, size)
    with pytest.raises(InvalidInput):
        decode_request(signature, body, header_length)


@pytest.mark.parametrize("payload", [b"\1", b"\1\0\0\0", b"\2\0\0\0a", b"\1\0\0\0a\0", b"\xff\xff\xff\xffabcd"])
def test_a_broken_bytes_tensor_is_refused_by_name(signature: ModelSignature, payload: bytes) -> None:
    body, header_length = binary_request("BYTES", [1, 1], payload, name="zip")
    with pytest.raises(InvalidInput, match="'zip'"):
        decode_request(signature, body, header_length)


def test_bytes_may_be_empty_and_hold_anything(signature: ModelSignature) -> None:
    payload = b"\0\0\0\0" + b"\3\0\0\0a\xff\0"
    body, header_length = binary_request("BYTES", [2, 1], payload, name="zip")
    assert decode_request(signature, body, header_length).tensors["zip"].values.tolist() == [b"", b"a\xff\0"]


@pytest.mark.parametrize("length", [-1, 10**6])
def test_the_header_length_must_lie_in_the_body(signature: ModelSignature, length: int) -> None:
    with pytest.raises(InvalidInput, match="Inference-Header-Content-Length"):
        decode_request(signature, json_request(), length)


@pytest.mark.parametrize("parameters", [{"sequence_id": 4}, {"sequence_id": "s"}])
def test_what_is_not_built_is_said_to_be_unsupported(signature: ModelSignature, parameters: dict[str, Any]) -> None:
    with pytest.raises(Unsupported):
        decode_request(signature, json_request(parameters=parameters), None)


@given(body=st.binary(max_size=300), length=st.none() | st.integers(-5, 400))
def test_noise_is_refused_and_never_crashes(signature: ModelSignature, body: bytes, length: int | None) -> None:
    with pytest.raises(InvalidInput):
        decode_request(signature, body, length)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["name", "a"]), inner, max_size=2),
    max_leaves=8,
)


@given(
    entry=st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from(["item", "user", "tags", "x"]) | _JSON,
            "shape": st.lists(st.integers(-2, 4), max_size=3) | _JSON,
            "datatype": st.sampled_from(["INT64", "BYTES", "FP32", "BOOL"]) | _JSON,
            "data": _JSON,
            "parameters": st.dictionaries(st.sampled_from(["binary_data_size", "z"]), _JSON, max_size=2) | _JSON,
        },
    ),
    tail=st.binary(max_size=20),
)
def test_a_mangled_input_is_read_or_refused(signature: ModelSignature, entry: dict[str, Any], tail: bytes) -> None:
    header = json.dumps({"inputs": [entry]}).encode()
    try:
        request = decode_request(signature, header + tail, len(header))
    except (InvalidInput, Unsupported):
        return
    assert set(request.tensors) <= set(signature.inputs)


def test_a_response_mixes_json_and_binary(signature: ModelSignature) -> None:
    outputs = [np.array([[0.5], [np.nan]], np.float32), np.array([[1.0], [2.0]], np.float32)]
    request = InferRequest({}, [RequestedOutput(0, False), RequestedOutput(1, True)], id="a")
    body, length = encode_response(signature, "3", request, outputs, {"snapshot": "s"}, REGIONS)
    header = json.loads(body[:length])
    assert body[length:] == outputs[1].tobytes()
    assert list(header) == ["id", "model_name", "model_version", "parameters", "outputs"]
    assert header["outputs"][1] == {
        "name": "like",
        "datatype": "FP32",
        "shape": [2, 1],
        "parameters": {"binary_data_size": 8},
    }
    assert header["outputs"][0]["data"][0] == 0.5
