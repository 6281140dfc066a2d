"""Routing key and min_snapshot: from headers, from parameters, and which of them counts."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from serving.protocol.proto_tensors import proto_parameters
from serving.protocol.routing import ANYWHERE, Routing, routing_of_headers, routing_of_parameters
from storage.errors import InvalidInput

ID = "0123456789abcdef0123456789abcdef"


def test_a_request_that_says_nothing_goes_anywhere() -> None:
    assert routing_of_headers({b"content-type": b"x"}) is ANYWHERE
    assert routing_of_parameters({"timeout": 3}) is ANYWHERE


def test_headers_are_read() -> None:
    headers = {b"emberline-routing-key": "käse".encode(), b"emberline-min-snapshot": b"3.17"}
    assert routing_of_headers(headers) == Routing("käse", "3.17")
    assert routing_of_headers({b"emberline-min-snapshot": ID.encode()}) == Routing("", ID)


@pytest.mark.parametrize(
    ("key", "text"), [(7, "7"), ("7", "7"), (-(2**63), str(-(2**63))), (2**64 - 1, str(2**64 - 1))]
)
def test_a_key_is_a_string_or_a_number_and_the_same_either_way(key: Any, text: str) -> None:
    assert routing_of_parameters({"routing_key": key}).routing_key == text


def test_a_parameter_overrides_its_header_and_null_is_none() -> None:
    headers = Routing("header", "1.0")
    assert routing_of_parameters({"routing_key": "body"}, headers) == Routing("body", "1.0")
    assert routing_of_parameters({"min_snapshot": "1.2", "routing_key": None}, headers) == Routing("header", "1.2")
    assert routing_of_parameters({"routing_key": ""}, headers).routing_key == ""


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"routing_key": True}, "routing_key"),
        ({"routing_key": 1.5}, "routing_key"),
        ({"routing_key": 2**64}, "routing_key"),
        ({"routing_key": "x" * 1025}, "routing_key"),
        ({"min_snapshot": 3}, "min_snapshot"),
        ({"min_snapshot": 3.17}, "min_snapshot"),
        ({"min_snapshot": "x" * 1025}, "min_snapshot"),
    ],
)
def test_what_is_neither_is_refused_by_field(parameters: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=f"parameter '{field}'") as raised:
        routing_of_parameters(parameters)
    assert raised.value.field == field


def test_a_header_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Emberline-Routing-Key"):
        routing_of_headers({b"emberline-routing-key": b"\xff"})


def test_parameters_of_a_protobuf_request() -> None:
    message = service_pb2.ModelInferRequest()
    message.parameters["routing_key"].int64_param = 7
    message.parameters["min_snapshot"].string_param = "1.2"
    assert routing_of_parameters(proto_parameters(message)) == Routing("7", "1.2")
    message.parameters["routing_key"].bool_param = True
    with pytest.raises(InvalidInput, match="routing_key"):
        routing_of_parameters(proto_parameters(message))
