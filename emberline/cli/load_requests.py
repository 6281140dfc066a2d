"""Makes the requests of a load test, and sends the first one, so that what is wrong is said before the load begins."""

from __future__ import annotations

import contextlib
import http.client
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emberline.cli.command import nearest
from emberline.cli.server_call import access_to, call_server, check_url, given_identity
from emberline.proving.batches import cut, kserve_type, read_requests
from loadtest.prepared import Prepared, encode
from loadtest.rows import InputMetadata, Tensor, inputs_of
from loadtest.sources import RowRequests, Wanted
from loadtest.target import Target
from loadtest.wire import HttpConnection, Tls, request_begin, whole_request
from storage.errors import EmberlineError, InvalidInput, NotFound, Unavailable

_TIMEOUT_S = 30.0
_GRPC_PORT = 8001
_METRICS_PORT = 8002


@dataclass(frozen=True)
class Content:
    """The requests before they are encoded, by stretches of time."""

    stretches: Sequence[Sequence[Sequence[Tensor]]]
    stretch_s: float
    #: What they are, in words.
    description: str

    def first(self, kind: str, model: str) -> Prepared:
        """Encodes the first request alone."""
        return encode(kind, model, [self.stretches[0][:1]])

    def prepare(self, kind: str, model: str) -> Prepared:
        """Encodes the requests for one kind of user. Raises InvalidInput where they take too much memory."""
        try:
            return encode(kind, model, self.stretches, stretch_s=self.stretch_s)
        except ValueError as error:
            raise InvalidInput(f"--distinct: {error}", field="distinct") from None


def find_target(url: str, grpc: str | None, model: str) -> tuple[Target, list[InputMetadata]]:
    """Asks a server for a model; returns where to send requests and which inputs the model takes.

    Raises Unavailable when no server answers, NotFound for an unknown model with the nearest names.
    """
    call_server(url, "/v2/health/live", _TIMEOUT_S)
    try:
        metadata, _ = call_server(url, f"/v2/models/{urllib.parse.quote(model, safe='')}", _TIMEOUT_S)
    except InvalidInput as error:
        raise _why_not_asked(url, model, error) from None
    given, (address, access) = given_identity(), access_to(url.rstrip("/"))
    files = (given.ca, given.cert, given.key)
    tls = Tls(*(str(each) if each else "" for each in files))
    host = urllib.parse.urlsplit(address).hostname or ""
    where = grpc or f"{f'[{host}]' if ':' in host else host}:{_GRPC_PORT}"
    return Target(address, where, model, access.token, tls), inputs_of(metadata)


def _why_not_asked(url: str, model: str, error: InvalidInput) -> EmberlineError:
    """Returns what to say of a model that is not described. A token for scores alone may not list the others."""
    with contextlib.suppress(InvalidInput):
        known = {entry["name"] for entry in call_server(url, "/v2/repository/index", _TIMEOUT_S, {})[0]}
        if model not in known:
            near = nearest(model, known)
            hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(sorted(known)) or 'none'}"
            return NotFound(f"--model: {url} has no model {model!r}; {hint}")
    return Unavailable(f"--model: {model!r} cannot be asked now: {error}")


def metrics_url(target: Target) -> str:
    """Returns where a server's metrics page is by default."""
    parts = urllib.parse.urlsplit(target.url)
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{_METRICS_PORT}/metrics"


def from_rows(data: str, inputs: Sequence[InputMetadata], wanted: Wanted, seconds: float) -> Content:
    """Returns requests made of rows. seconds: of the test. Raises InvalidInput naming the column that is wrong."""
    try:
        source = RowRequests(data, inputs, wanted)
        stretches = [list(each) for each in source.stretches(seconds)]
    except ValueError as error:
        text = str(error).removeprefix(f"{data}: ")
        raise InvalidInput(text if text.startswith("--") else f"--data {data}: {text}", field="data") from None
    return Content(stretches, wanted.stretches(seconds)[1], source.describe())


def recorded(path: Path, inputs: Sequence[InputMetadata], items: int) -> Content:
    """Returns the requests of a file as `emberline prove --requests` reads them, in their order.

    Those of JSON lines stay as they are; the rows of another file become requests of `items` rows. Raises InvalidInput
    for a file that cannot be read, or an input that the model does not have.
    """
    batches = read_requests(path)
    if len(batches) == 1 and path.suffix not in (".jsonl", ".json"):
        rows = len(next(iter(batches[0].values())))
        batches = cut(batches, items, rows)
    known = {entry.name for entry in inputs}
    for number, batch in enumerate(batches):
        for name in batch:
            if name.removesuffix(".valid").removesuffix(".lengths") not in known:
                raise InvalidInput(
                    f"--requests {path}: request {number} has the input {name!r}, which the model has not; it has "
                    f"{', '.join(sorted(known))}",
                    field="requests",
                )
    requests = [[_tensor(name, values) for name, values in batch.items()] for batch in batches]
    return Content([requests], 0.0, f"{len(requests):,} recorded requests of {path}, in their order")


def send_first(target: Target, kind: str, prepared: Prepared) -> None:
    """Sends one request. Raises InvalidInput with the server's words when it refuses, Unavailable without an answer."""
    if kind == "grpc":
        _call_first(target, prepared)
        return
    kinds = {"http_binary": "application/octet-stream", "http_json": "application/json"}
    headers = {"Content-Type": kinds[kind], **({"Authorization": f"Bearer {target.token}"} if target.token else {})}
    begin = request_begin(target.url, urllib.parse.quote(target.model, safe=""), headers)
    connection = HttpConnection(target.url, target.tls, _TIMEOUT_S)
    try:
        answer = connection.ask(whole_request(begin, prepared.body(0), prepared.headers[0]))
    except OSError as error:
        raise Unavailable(f"no answer to the first request to {target.url}: {error}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise InvalidInput(f"{target.url} refused the first request with {answer.status}: {answer.reason}")


def _call_first(target: Target, prepared: Prepared) -> None:
    import grpc

    from loadtest.channel import call_once

    try:
        call_once(target, prepared.body(0), _TIMEOUT_S)
    except grpc.RpcError as error:
        name, text = error.code().name, error.details()
        if name in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
            raise Unavailable(f"no answer from gRPC at {target.grpc}; give its address with --grpc: {text}") from None
        raise InvalidInput(f"{target.grpc} refused the first call with {name}: {text}") from None


def fetch_page(url: str) -> Callable[[], str]:
    """Returns a function that reads a page with the caller's identity, or raises OSError or ValueError.

    Raises ConfigError for an address that is none.
    """
    check_url(url, "metrics")
    address, access = access_to(url)

    def fetch() -> str:
        request = urllib.request.Request(address)
        if access.token:
            request.add_header("Authorization", f"Bearer {access.token}")
        try:
            with access.opener.open(request, timeout=10.0) as answer:
                return str(answer.read().decode())
        except http.client.HTTPException as error:
            raise OSError(f"it does not speak HTTP: {type(error).__name__}") from None

    return fetch


def _tensor(name: str, values: np.ndarray[Any, Any]) -> Tensor:
    if values.dtype == object:
        flat = [each if isinstance(each, bytes) else str(each).encode() for each in values.ravel()]
        array = np.empty(len(flat), object)
        array[:] = flat
        return Tensor(name, "BYTES", array.reshape(values.shape))
    values = values if values.ndim > 1 else values.reshape(-1, 1)
    return Tensor(name, kserve_type(values), np.ascontiguousarray(values))
