"""The forms of requests that the native HTTP server reads: each has the answer of the Python path, to the byte."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from serving import Server
from serving._front import number_text
from serving.http.native_server import NativeHttpServer
from serving.protocol.json_text import dump_json
from tests.fuzz.mutations import mutate_json
from tests.fuzz.valid import v2_request
from tests.integration.serving.conftest import Published
from tests.integration.serving.native_clients import (
    BY_PYTHON,
    LENGTH,
    PATH,
    WIRE_NAMES,
    Client,
    answered_alike,
    body_of,
    tensors,
)


def user_of(published: Published, rows: int, width: int) -> dict[str, np.ndarray]:
    """Returns a request of one user with a history of `width` items, and `rows` items."""
    values = tensors(published, rows)
    rng = np.random.default_rng(width)
    values["user"] = values["user"][:1]
    values["history"] = rng.choice([*published.items, 5], (1, width)).astype(np.int64)
    return values


def test_one_user_with_many_items_is_answered_natively(server: Server, published: Published) -> None:
    for rows, width in ((1, 3), (2, 0), (2, 1), (7, 40), (64, 64)):
        values = user_of(published, rows, width)
        reply = answered_alike(server, body_of(values))
        assert reply.status == 200
        lengths = np.array([max(0, width - 1)], np.int64)
        for companions in (
            {"history.lengths": lengths},
            {"history.lengths": lengths.reshape(1, 1).astype(np.int32)},
            {"history.lengths": lengths, "history.valid": np.array([False])},
            {"history.valid": np.array([[True]])},
            {"user.valid": np.array([False]), "item.valid": np.arange(rows) % 2 == 0},
        ):
            assert answered_alike(server, body_of({**companions, **values})).status == 200
        repeated = {**values, "user": np.repeat(values["user"], rows), "history": np.repeat(values["history"], rows, 0)}
        whole = answered_alike(server, body_of(repeated))
        at = slice(-8 * rows, None)
        np.testing.assert_allclose(
            np.frombuffer(reply.content[at], np.float32), np.frombuffer(whole.content[at], np.float32), atol=1e-5
        )


def test_lists_of_other_forms_are_answered_by_python(server: Server, published: Published) -> None:
    values = user_of(published, 2, 4)
    length = np.array([4], np.int64)
    wrong: list[Mapping[str, np.ndarray]] = [
        {**values, "history.lengths": length + 1},
        {**values, "history.lengths": -length},
        {**values, "history.lengths": length.astype(np.float32)},
        {**values, "history.lengths": np.repeat(length, 2)},
        {**values, "history.valid": length},
        {**values, "history": np.zeros((1, 65), np.int64)},
        {**values, "history": values["history"].ravel()},
        {**values, "user": np.repeat(values["user"], 3)},
        {"history.lengths": length, **{name: value for name, value in values.items() if name != "history"}},
        {**values, "item": values["item"][:1], "price": values["price"][:1], "user": np.repeat(values["user"], 2)},
    ]
    for each in wrong:
        assert answered_alike(server, body_of(each), natively=False).status == 400


def test_requests_with_lists_share_batches(server: Server, native: NativeHttpServer, published: Published) -> None:
    forms = [body_of({**user_of(published, rows, 3), "user": tensors(published, rows)["user"]}) for rows in (1, 2, 1)]
    forms = [form for form in forms for _ in range(8)]
    clients = [Client(server.http_port) for _ in forms]
    expected = [clients[0].post(*form, BY_PYTHON) for form in forms]
    before = native.native.answered
    for each, (body, length) in zip(clients, forms, strict=True):
        each.connection.request("POST", PATH, body, {LENGTH: str(length)})
    for each, python in zip(clients, expected, strict=True):
        reply = each.read()
        at = len(reply.content) - int(reply.headers[LENGTH.lower()])
        np.testing.assert_allclose(
            np.frombuffer(reply.content[-at:], np.float32), np.frombuffer(python.content[-at:], np.float32), atol=1e-5
        )
        each.connection.close()
    assert native.native.answered == before + len(forms)


def test_priority_and_timeout_are_read_natively(server: Server, published: Published) -> None:
    values = tensors(published, 2)
    for given in ({"priority": 0}, {"priority": 1}, {"priority": 99}, {"timeout": 0}, {"timeout": 5_000_000}):
        form = body_of(values, parameters={"binary_data_output": True, **given})
        assert answered_alike(server, form).status == 200
    for ill in ({"priority": -1}, {"priority": "x"}, {"timeout": 1.5}, {"timeout": None}, {"timeout": True}):
        form = body_of(values, parameters={"binary_data_output": True, **ill})
        assert answered_alike(server, form, natively=False).status == 400
    for rare in ({"priority": "1"}, {"timeout": "5000000"}, {"timeout": 2**50}, {"sequence_id": 0}):
        form = body_of(values, parameters={"binary_data_output": True, **rare})
        assert answered_alike(server, form, natively=False).status == 200


def text_of(values: Mapping[str, np.ndarray], **beside: Any) -> tuple[bytes, int]:
    """Returns a request whose tensors are text."""
    inputs = [
        {"name": name, "shape": list(value.shape), "datatype": WIRE_NAMES[value.dtype], "data": value.tolist()}
        for name, value in values.items()
    ]
    text = json.dumps({"inputs": inputs, **beside}).encode()
    return text, len(text)


def test_tensors_of_text_are_answered_natively(server: Server, published: Published) -> None:
    values = tensors(published, 3)
    flat = {**values, "price": values["price"].ravel()}
    flat_form = text_of(flat)[0].replace(b'"price", "shape": [6]', b'"price", "shape": [3, 2]')
    for form in (
        text_of(values),
        text_of({**values, "history": np.zeros((3, 0), np.int64)}),
        text_of({**user_of(published, 5, 6), "history.lengths": np.array([2]), "history.valid": np.array([True])}),
        text_of({**values, "item.valid": np.array([[True], [False], [True]])}),
        text_of(values, id="a", parameters={"priority": 1}),
        text_of(values, outputs=[{"name": "like"}]),
        text_of(values, outputs=[{"name": "like", "parameters": {"binary_data": True}}, {"name": "score"}]),
        text_of(values, parameters={"binary_data_output": True}),
        text_of({**values, "price": values["price"].astype(np.int64)}),
        (flat_form, len(flat_form)),
    ):
        assert answered_alike(server, form).status == 200
    # Without the header that says where the JSON ends, all of the body is JSON.
    for body in (text_of(values)[0], b" \n" + text_of(values)[0] + b"\t"):
        assert answered_alike(server, (body, None)).headers["content-type"] == "application/json"


def test_numbers_of_text_are_read_as_python_reads_them(server: Server, published: Published) -> None:
    template = text_of(tensors(published, 1))[0].decode()
    begin, end = template[: template.index('"price"')], "]}]}"
    rng = np.random.default_rng(3)
    texts = ["0", "-0", "-0.0", "1E2", "1e+2", "0.1e-3", "1.", ".5", "01", "1e39", "-1e39", "1e400", "1e-400", "1e-46",
             "3.4028235677973366e38", "1.00000017881393432617187499", "16777217", "9007199254740993",
             "18446744073709551615", "18446744073709551616", "123456789012345678901234567890", "NaN", "-Infinity",
             "null", "true", '"1"', "0.1234567890123456789012345678901234567890123"]  # fmt: skip
    texts += [repr(float(value)) for value in rng.standard_normal(200) * 10.0 ** rng.integers(-12, 12, 200)]
    for text in texts:
        for dtype in ("FP32", "INT64"):
            form = (f'{begin}"price", "shape": [1, 2], "datatype": "{dtype}", "data": [{text}, 2{end}').encode()
            answered_alike(server, (form, len(form)), natively=None)
    items = ["9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "1e3", "-0"]
    for item in items:
        for dtype in ("INT64", "UINT64", "INT32"):
            text = re.sub(r'"INT64", "data": \[\[-?[0-9]+\]\]', f'"{dtype}", "data": [[{item}]]', template)
            assert text != template
            answered_alike(server, (text.encode(), len(text)), natively=None)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_are_written_as_python_writes_them(dtype: type[np.floating[Any]]) -> None:
    rng = np.random.default_rng(11)
    bits = rng.integers(0, 2 ** (8 * np.dtype(dtype).itemsize), 1_000_000, np.uint64, endpoint=False)
    limits = np.finfo(dtype)
    special = [0.0, -0.0, 1.0, limits.max, limits.min, limits.tiny, limits.smallest_subnormal, 2.0**53, 2.0**24]
    around = np.array([float(f"1e{each}") for each in range(limits.minexp // 4, limits.maxexp // 4)], dtype)
    values = np.concatenate(
        [
            bits.astype(f"<u{np.dtype(dtype).itemsize}").view(dtype),
            rng.random(200_000).astype(dtype),
            np.array(special, dtype),
            around,
            np.nextafter(around, dtype(0)),
            np.nextafter(around, dtype(limits.max)),
            rng.integers(-(2**40), 2**40, 10_000).astype(dtype),
        ]
    )
    values = values[np.isfinite(values)]
    assert f"[{number_text(values)}]" == dump_json(values).decode()


def test_requests_of_any_form_get_the_answer_of_the_python_path(server: Server, native: NativeHttpServer) -> None:
    rng, before = random.Random(5), native.native.answered
    for number in range(500):
        request = v2_request(rng, binary=0.5 if number % 2 else 0.0)
        header = request.header
        if not request.tail:
            header["inputs"] = [entry for entry in header["inputs"] if entry["datatype"] != "BYTES"]
        if number % 3 == 0:
            header = mutate_json(rng, header)
        text = json.dumps(header).encode()
        answered_alike(server, (text + request.tail, len(text)), natively=None)
    assert native.native.answered > before + 50
