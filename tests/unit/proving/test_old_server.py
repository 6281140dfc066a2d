"""Content that an old server refuses is left out; every other failure of it ends the comparison."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from emberline.proving import transports
from emberline.proving.batches import kserve_type, read_requests
from emberline.proving.comparison import compare, unpaired
from emberline.proving.local_model import column
from emberline.proving.old_server import Names, OldServer, as_declared
from emberline.proving.transports import Access, ServerFault
from storage.errors import ConfigError, EmberlineError, InvalidInput, NotFound, Unavailable
from storage.features import InputSpec

BATCH = {"x": np.arange(8, dtype=np.float32)[:, None]}


class Old(ThreadingHTTPServer):
    """Doubles x, and answers `code` to requests with a 5 for the first `failures` of them."""

    code, failures, asked = 400, 1000, 0
    token = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Old

    def do_GET(self) -> None:
        self.answer(200, {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}], "outputs": [{"name": "y"}]})

    def do_POST(self) -> None:
        values = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["inputs"][0]["data"]
        self.server.token = self.headers.get("Authorization", "")
        if 5 in values:
            self.server.asked += 1
            if self.server.asked <= self.server.failures:
                self.answer(self.server.code, {"error": "not five"})
                return
        data = [2 * each for each in values]
        self.answer(200, {"outputs": [{"name": "y", "datatype": "FP32", "shape": [len(data), 1], "data": data}]})

    def answer(self, code: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> Iterator[Old]:
    monkeypatch.setattr(transports, "_WAITS_S", (0.01, 0.01))
    with Old() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("code", [400, 422])
def test_rows_whose_content_is_refused_are_left_out(old: Old, code: int) -> None:
    old.code = code
    accepted, words = OldServer(old.address, "m").accepted(BATCH)
    assert np.flatnonzero(~accepted).tolist() == [5]
    assert f"answered {code}" in words
    assert "not five" in words


@pytest.mark.parametrize(
    ("code", "kind", "asked", "text"),
    [
        (401, ConfigError, 1, "--token-file"),
        (403, ConfigError, 1, "--token-file"),
        (404, NotFound, 1, "--model"),
        (413, InvalidInput, 1, "--batch-rows"),
        (429, Unavailable, 3, r"answered 429: .*\(3 times\)"),
        (500, ServerFault, 1, "answered 500: .*not five"),
        (503, Unavailable, 3, r"answered 503: .*\(3 times\)"),
    ],
)
def test_other_failures_end_the_comparison(
    old: Old, code: int, kind: type[EmberlineError], asked: int, text: str
) -> None:
    old.code = code
    with pytest.raises(kind, match=text):
        OldServer(old.address, "m").accepted(BATCH)
    assert old.asked == asked


def test_a_server_that_is_busy_for_a_while_is_asked_again(old: Old) -> None:
    old.code, old.failures = 503, 2
    assert OldServer(old.address, "m").score(BATCH)["y"].ravel().tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


def test_a_token_is_sent(old: Old) -> None:
    OldServer(old.address, "m", access=Access(token="secret"), names=Names({}, {"score": "y"})).score(
        {"x": BATCH["x"][:2]}
    )
    assert old.token == "Bearer secret"


@pytest.mark.parametrize(("names", "what"), [(Names({"a": "z"}), "input 'z'"), (Names({}, {"a": "yy"}), "output 'yy'")])
def test_names_that_the_server_has_not_are_refused_with_those_that_it_has(old: Old, names: Names, what: str) -> None:
    with pytest.raises(ConfigError, match=rf"the old server has no {what}.*it has \['[xy]'\]"):
        OldServer(old.address, "m", names=names)


def test_outputs_of_one_side_alone_are_named() -> None:
    values, texts = np.zeros(2), np.array([b"a", b"b"], object)
    assert unpaired({"a": values, "b": texts}, {"a": values}) == (("b",), ())
    assert unpaired({"b": texts, "x": values}, {"a": values}) == (("b",), ())
    assert unpaired({"a": values, "b": values}, {"a": values, "c": values}) == (("b",), ("c",))
    assert unpaired({"a": values}, {"b": values}) == ((), ())


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    code = grpc.StatusCode.INVALID_ARGUMENT

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ModelMetadataResponse(name="m")

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        values = np.frombuffer(request.raw_input_contents[0], np.float32)
        if 5 in values:
            context.abort(self.code, "not five")
        answer = service_pb2.ModelInferResponse()
        answer.outputs.add(name="y", datatype="FP32", shape=[len(values), 1])
        answer.raw_output_contents.append((2 * values).tobytes())
        return answer


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("INVALID_ARGUMENT", None),
        ("INTERNAL", ServerFault),
        ("UNAUTHENTICATED", ConfigError),
        ("RESOURCE_EXHAUSTED", Unavailable),
        ("NOT_FOUND", NotFound),
    ],
)
def test_codes_of_grpc_mean_the_same(
    code: str, kind: type[EmberlineError] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "_WAITS_S", (0.01,))
    servicer = Servicer()
    servicer.code = grpc.StatusCode[code]
    with started(servicer) as address:
        old = OldServer(address, "m")
        if kind is None:
            assert np.flatnonzero(~old.accepted(BATCH)[0]).tolist() == [5]
        else:
            with pytest.raises(kind, match=f"{code}: not five"):
                old.accepted(BATCH)


@contextmanager
def started(servicer: Servicer) -> Iterator[str]:
    """Serves, and returns the address."""
    server = grpc.server(ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


class OfAllTypes(Servicer):
    """Answers with raw contents, or with those of each type's own field."""

    is_typed = False

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = service_pb2.ModelInferResponse()
        for name, (datatype, typed, raw) in TYPES.items():
            if self.is_typed and not typed:
                continue
            output = answer.outputs.add(name=name, datatype=datatype, shape=[2, 1])
            if self.is_typed:
                getattr(output.contents, typed).extend(VALUES[name])
            else:
                answer.raw_output_contents.append(raw)
        return answer


VALUES = {"bf": [1.5, -2.0], "u": [3, 65535], "text": [b"ab", b""], "f": [0.5, 2.0], "truth": [True, False]}
TYPES = {
    "bf": ("BF16", "", b"\xc0\x3f\x00\xc0"),
    "u": ("UINT16", "uint_contents", np.array(VALUES["u"], np.uint16).tobytes()),
    "text": ("BYTES", "bytes_contents", b"\x02\x00\x00\x00ab\x00\x00\x00\x00"),
    "f": ("FP32", "fp32_contents", np.array(VALUES["f"], np.float32).tobytes()),
    "truth": ("BOOL", "bool_contents", b"\x01\x00"),
}


@pytest.mark.parametrize("is_typed", [False, True])
def test_outputs_of_all_types_are_read(is_typed: bool) -> None:
    servicer = OfAllTypes()
    servicer.is_typed = is_typed
    with started(servicer) as address:
        found = OldServer(address, "m").score({"x": BATCH["x"][:2]})
    wanted = {name: values for name, values in VALUES.items() if TYPES[name][1] or not is_typed}
    assert {name: values[:, 0].tolist() for name, values in found.items()} == wanted
    assert found["u"].dtype == np.uint16


@pytest.mark.parametrize(
    ("datatype", "value"), [("INT64", 2**70), ("INT64", 1.7), ("UINT8", 300), ("INT32", True), ("BOOL", 2)]
)
def test_numbers_that_a_type_cannot_hold_are_named_with_their_line(datatype: str, value: Any, tmp_path: Path) -> None:
    entry = {"name": "x", "datatype": datatype, "shape": [1], "data": [value]}
    good = {**entry, "datatype": "FP32", "data": [1.5]}
    (tmp_path / "asked.jsonl").write_text(json.dumps({"inputs": [good]}) + "\n" + json.dumps({"inputs": [entry]}))
    with pytest.raises(InvalidInput, match=rf"asked.jsonl:2: .*'x': {value} is no {datatype}"):
        read_requests(tmp_path / "asked.jsonl")


def test_ids_that_the_old_server_cannot_take_are_not_sent_as_others() -> None:
    declared = {"name": "x", "datatype": "INT32", "shape": [-1, 1]}
    assert as_declared(np.array([[5.0]]), declared).tolist() == [[5]]
    for wrong in (np.array([[2**40]]), np.array([[1.5]])):
        with pytest.raises(InvalidInput, match="input 'x': the old server takes INT32, which cannot hold"):
            as_declared(wrong, declared)


def test_ids_that_a_float_cannot_hold_are_not_sent_as_others() -> None:
    declared = {"name": "user", "datatype": "FP32", "shape": [-1, 1]}
    assert as_declared(np.array([[2**24]]), declared).dtype == np.float32
    for wrong in (np.array([[2**24 + 1]]), np.array([[2**63 - 1]])):
        with pytest.raises(InvalidInput, match=f"the old server takes FP32, which cannot hold {wrong[0, 0]}"):
            as_declared(wrong, declared)


def test_an_input_of_the_model_does_not_become_another_in_fewer_bits() -> None:
    entry = InputSpec(name="user", dtype="INT32")
    assert column(entry, np.array([7])).values.tolist() == [7]
    with pytest.raises(InvalidInput, match="input 'user' is INT32, which cannot hold 4294967303"):
        column(entry, np.array([2**32 + 7]))


def test_infinite_answers_that_are_alike_are_equal() -> None:
    old = {"y": np.array([[np.inf], [-np.inf], [np.nan], [np.inf], [1.0]])}
    new = {"y": np.array([[np.inf], [-np.inf], [np.nan], [-np.inf], [np.inf]])}
    assert compare(old, new, 1e-5).differs.tolist() == [False, False, False, True, True]


def test_texts_of_requests_are_read_from_archives_and_lines(tmp_path: Path) -> None:
    np.savez(tmp_path / "r.npz", user=np.array(["a", "b"]))
    (request,) = read_requests(tmp_path / "r.npz")
    assert (kserve_type(request["user"]), request["user"].tolist()) == ("BYTES", ["a", "b"])
    # A line separator of Unicode is a letter like others in JSON.
    body = {"inputs": [{"name": "user", "datatype": "BYTES", "shape": [1], "data": ["a\u2028b"]}]}
    (tmp_path / "r.jsonl").write_text(json.dumps(body, ensure_ascii=False) + "\r\n", encoding="utf-8")
    (request,) = read_requests(tmp_path / "r.jsonl")
    assert request["user"].tolist() == ["a\u2028b"]
    with pytest.raises(InvalidInput, match=r"values of datetime64.*KServe v2 has no such type"):
        kserve_type(np.zeros(1, "datetime64[s]"))


def test_an_archive_of_requests_that_is_damaged_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.npz"
    np.savez_compressed(path, user=np.arange(4000) % 97)
    data = path.read_bytes()
    # A byte of the packed values, the flag of an encrypted member, and a version of the format that is none.
    for place, byte in ((60, 0xFF), (data.index(b"PK\x01\x02") + 8, 1), (data.index(b"PK\x01\x02") + 6, 0xFF)):
        path.write_bytes(data[:place] + bytes([byte]) + data[place + 1 :])
        with pytest.raises(InvalidInput, match=r"r\.npz: cannot be read as \.npz"):
            read_requests(path)
