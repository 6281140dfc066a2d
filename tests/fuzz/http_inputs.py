"""HTTP requests to fuzz with: well-framed ones whose content is changed, and bytes that are hardly HTTP any more."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import quote

from serving.http.model_control import VERBS
from tests.fuzz import valid
from tests.fuzz.mutations import INTEGERS, TEXTS, dump, mutate_bytes, mutate_json, value
from tests.fuzz.served import ECHO, MODEL, REGION, SEGMENT, SEGMENT_BYTES, SPARE

_NAMES = (MODEL, MODEL, MODEL, MODEL, SPARE, ECHO, f"{MODEL}.item", f"{MODEL}.user", "nope", "..", "%00", "r\u00e4nker")
# What would take the good model away, or cost a machine of its own, is left to the tests of those calls.
_VERBS = tuple(sorted(set(VERBS) - {"unload", "load", "sessions"}))
_BODIES: tuple[dict[str, Any], ...] = (
    *(
        {"to": "1.0"},
        {"steps": 1},
        {"fraction": 0.5},
        {"stop": True},
        {"dram_bytes": None},
        {"dram_bytes": "64MiB"},
        {},
    ),
    *({"version": 2, "inputs": ["x"]}, {"ready": True}, {"key": "none", "byte_size": 8}, {"trace_level": ["OFF"]}),
    *({"key": SEGMENT, "byte_size": 64}, {"key": "/" + SEGMENT, "byte_size": SEGMENT_BYTES, "offset": 0}),
)
_LOOKS = (
    *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v1/models", "/openapi.json", "/v2/logging"),
    *("/v2/trace/setting", "/v2/systemsharedmemory/status", "/v2/cudasharedmemory/status", "/v2/repository/index"),
)
_ABOUT = ("", "/ready", "/config", "/stats", "/versions/1", "/versions/1/stats", "/versions/9", "/trace/setting")
_METHODS = ("GET", "GET", "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")
_JUNK_HEADERS = (
    *(b"Content-Encoding: br", b"Content-Encoding: gzip, gzip", b"Expect: 100-continue", b"Upgrade: h2c", b"Host: "),
    *(
        b"Accept-Encoding: gzip;q=0, *;q=nan",
        b"Accept-Encoding: deflate",
        b"Transfer-Encoding: identity",
        b"A: \xff\xfe",
    ),
    *(b"Emberline-Min-Snapshot: 9.9", b"Emberline-Min-Snapshot: \xff", b"Emberline-Routing-Key: " + b"k" * 2000),
    *(b"Content-Type: application/x-www-form-urlencoded", b"Authorization: Bearer x", b"Connection: upgrade, close"),
    *(
        b"Inference-Header-Content-Length: 1",
        b"Inference-Header-Content-Length: -1",
        b"X: " + b"y" * 70_000,
        b": empty",
    ),
    *(b"Content-Length: 18446744073709551616", b"Content-Length: -5", b"Content-Length: 0x10", b"Content-Length: 1, 1"),
    *(
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: chunked, identity",
        b"Connection: keep-alive",
        b"Range: bytes=0-",
    ),
)
_SPLITS = (b"\r\n", b"\n", b"\r", b"\r\n ", b"\x00", b" ", b":", b"HTTP/1.1", b"HTTP/9.9", b"\r\n\r\n", b"0\r\n\r\n")


@dataclass(slots=True)
class Framed:
    """A request whose end the server finds, whatever its content; it gets one answer."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def encode(self) -> bytes:
        """Returns the bytes of the request as they are sent."""
        lines = [f"{self.method} {self.path} HTTP/1.1", "host: x", f"content-length: {len(self.body)}"]
        lines += [f"{name}: {said}" for name, said in self.headers.items()]
        return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + self.body


def framed_request(rng: Random) -> Framed:
    """Returns one request, changed anywhere but in its framing."""
    kind = rng.random()
    if kind < 0.45:
        request = infer_request(rng)
    elif kind < 0.65:
        request = _v1(rng)
    elif kind < 0.75:
        request = _echo(rng)
    elif kind < 0.88:
        request = _look(rng)
    else:
        request = _control(rng)
    if rng.random() < 0.03:
        request.path = _odd_path(rng, request.path)
    if rng.random() < 0.05:
        request.headers["accept-encoding"] = rng.choice(("gzip", "deflate", "gzip;q=0", "br", "*"))
    if rng.random() < 0.05:
        _compress(rng, request)
    return request


def infer_request(rng: Random) -> Framed:
    """Returns a v2 request, changed anywhere but in its framing."""
    found = valid.v2_request(rng, region=REGION)
    header, tail = found.header, found.tail
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        header = mutate_json(rng, header)
    text = dump(rng, header)
    if rng.random() < 0.1:
        text = mutate_bytes(rng, text)
    if rng.random() < 0.15:
        tail = mutate_bytes(rng, tail)
    headers = {}
    if tail or rng.random() < 0.1:
        length = str(len(text))
        if rng.random() < 0.05:
            length = str(rng.choice((*INTEGERS, len(text) + 1, len(text) - 1, "", "x", "\u00b2", " 7", "+7", "7_0")))
        headers["inference-header-content-length"] = length
    if rng.random() < 0.03:
        headers["emberline-min-snapshot"] = rng.choice(("1.0", "9.9", "x", "", "-1.-1", "1.99999999999999999999"))
    version = rng.choice(("", "", "", "/versions/1", "/versions/2", "/versions/x"))
    name = quote(rng.choice(_NAMES), safe="%.") if rng.random() < 0.2 else MODEL
    return Framed("POST", f"/v2/models/{name}{version}/infer", headers, text + tail)


def raw_input(rng: Random) -> bytes:
    """Returns bytes for a connection of their own."""
    data = framed_request(rng).encode()
    if rng.random() < 0.4:
        data = _chunked(rng, data)
    if rng.random() < 0.3:
        data = b"".join([data, framed_request(rng).encode(), data])
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        head, split, body = data.partition(b"\r\n\r\n")
        kind = rng.randrange(6)
        if kind == 0:
            head = mutate_bytes(rng, head, _SPLITS)
        elif kind == 1:
            head += b"\r\n" + rng.choice(_JUNK_HEADERS)
        elif kind == 2:
            lines = head.split(b"\r\n")
            lines.insert(rng.randrange(1, len(lines) + 1), rng.choice(_JUNK_HEADERS))
            head = b"\r\n".join(lines)
        elif kind == 3:
            wrong = str(rng.choice((*INTEGERS, len(body) + 1, len(body) - 1))).encode()
            head = b"\r\n".join(
                b"content-length: " + wrong if line.startswith(b"content-length") else line
                for line in head.split(b"\r\n")
            )
        elif kind == 4:
            split = rng.choice(_SPLITS)
        data = head + split + body
        if kind == 5:
            data = mutate_bytes(rng, data, _SPLITS)
    return data


def _v1(rng: Random) -> Framed:
    tree = valid.v1_request(rng)
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        tree = mutate_json(rng, tree)
    text = dump(rng, tree)
    if rng.random() < 0.1:
        text = mutate_bytes(rng, text)
    name = quote(rng.choice(_NAMES), safe="%.") if rng.random() < 0.1 else MODEL
    return Framed("POST", f"/v1/models/{name}:predict", {}, text)


def _echo(rng: Random) -> Framed:
    texts = [rng.choice(("", "a", "bc")) for _ in range(4)]
    tree = {
        "inputs": [
            {"name": "text", "shape": [2, 2], "datatype": "BYTES", "data": texts},
            {"name": "half", "shape": [2, 2], "datatype": "FP32", "data": [1, 2.5, 1e30, -0.0]},
        ],
        "outputs": [{"name": "half", "parameters": {"classification": 2}}, {"name": "text"}][rng.randrange(2) :],
    }
    for _ in range(rng.choice((0, 1, 2, 3))):
        tree = mutate_json(rng, tree)
    if rng.random() < 0.3:
        tree = {"inputs": [{"name": "ids", "shape": [3], "datatype": "INT64", "data": [1, 2, 3]}]}
        for _ in range(rng.choice((0, 1, 2))):
            tree = mutate_json(rng, tree)
        return Framed("POST", f"/v2/models/{MODEL}.item/infer", {}, dump(rng, tree))
    return Framed("POST", f"/v2/models/{ECHO}/infer", {}, dump(rng, tree))


def _look(rng: Random) -> Framed:
    name = quote(rng.choice(_NAMES), safe="%.")
    paths = (
        rng.choice(_LOOKS),
        f"/v2/models/{name}{rng.choice(_ABOUT)}",
        f"/v2/repository/models/{name}/{rng.choice(('snapshots', 'budget', 'sessions', 'load'))}",
        f"/v1/models/{name}",
    )
    method = rng.choice(_METHODS)
    path = rng.choice(paths)
    if method == "POST" and path.endswith("/load"):
        method = "GET"
    return Framed(method, path, {}, b"" if rng.random() < 0.8 else json.dumps(value(rng)).encode())


def _control(rng: Random) -> Framed:
    tree = json.loads(json.dumps(rng.choice(_BODIES)))
    for _ in range(rng.choice((0, 1, 1, 2))):
        tree = mutate_json(rng, tree)
    name = rng.choice((SPARE, SPARE, "nope", quote(rng.choice(TEXTS).encode("utf-8", "replace")) or "x"))
    region = rng.choice((f"/region/{REGION}", f"/region/{REGION}", "/region/r2", ""))
    path = rng.choice(
        (
            f"/v2/repository/models/{name}/{rng.choice(_VERBS)}",
            f"/v2/repository/models/{name}/{rng.choice(_VERBS)}",
            "/v2/repository/index",
            f"/v2/{rng.choice(('system', 'system', 'cuda'))}sharedmemory{region}/{_registering(rng)}",
            rng.choice(("/v2/trace/setting", f"/v2/models/{name}/trace/setting", "/v2/logging")),
        )
    )
    return Framed("POST", path, {}, dump(rng, tree))


def _registering(rng: Random) -> str:
    return "unregister" if rng.random() < 0.2 else "register"


def _odd_path(rng: Random, path: str) -> str:
    # Behind the first slash, and nothing that a parser refuses: what was sent before that would have no answer either.
    at = rng.randrange(1, len(path) + 1)
    piece = rng.choice(("%", "%zz", "%2f", "//", "/../", "?", "?a=b&c", "%ff", "#", ";", "*", "%E2%82", "a" * 5000))
    return path[:at] + piece + path[at:] if rng.random() < 0.7 else path[:at] + piece


def _compress(rng: Random, request: Framed) -> None:
    """Says that the body is compressed: it is, it is cut off, it is a bomb, or it is not."""
    kind = rng.randrange(6)
    request.headers["content-encoding"] = encoding = rng.choice(("gzip", "deflate"))
    body = request.body if kind != 3 else b"\x00" * rng.choice((10_000, 5_000_000))
    packed = gzip.compress(body, 1) if encoding == "gzip" else zlib.compress(body, 1)
    if kind == 1:
        packed = packed[: rng.randrange(len(packed))]
    elif kind == 2:
        packed = mutate_bytes(rng, packed)
    elif kind == 4:
        packed = body
    elif kind == 5:
        packed = rng.choice((packed * 2, packed + b"x", packed + gzip.compress(b"") * 20_000))
    request.body = packed


def _chunked(rng: Random, data: bytes) -> bytes:
    head, _, body = data.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"content-length")]
    parts = []
    while body:
        size = rng.choice((1, 3, 100, len(body)))
        part, body = body[:size], body[size:]
        said = f"{len(part):x}".encode()
        if rng.random() < 0.03:
            said = rng.choice(
                (b"-1", b"0", b"ffffffffffffffffff", b"1" + said, b"10000000000", b"zz", said + b";x=y", b"")
            )
        parts.append(said + b"\r\n" + part + b"\r\n")
        if len(parts) > 50:
            parts.append(f"{len(body):x}".encode() + b"\r\n" + body + b"\r\n")
            break
    end = rng.choice((b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"", b"0\r\n"))
    return b"\r\n".join([*lines, b"transfer-encoding: chunked"]) + b"\r\n\r\n" + b"".join(parts) + end
