"""Runs a server that answers a request with its own tensor: our HTTP protocol without a model, or a bare ASGI one.

python -m benchmarks.echo_server ours PORT
python -m benchmarks.echo_server asgi PORT
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from serving._front import Observer
from serving.config import ServerConfig
from serving.engine.requests import InferenceResult
from serving.event_loop import run_on_loop
from serving.http.app import HttpApp
from serving.http.limits import HttpLimits
from serving.http.messages import HttpRequest, HttpResponse
from serving.http.server import http_server
from serving.ports import listen
from serving.protocol.regions import Regions
from serving.protocol.signature import ModelSignature, OutputSignature
from serving.repository.regions import SharedRegions
from serving.security.gate import Gate
from storage.features import Column, FeatureSpec

ROWS, WIDTH = 512, 65  # 133 kB of FP32


class _Name:
    id, version, sequence = "0" * 32, 1, 0


class _Echo:
    """Returns the input tensor as the answer; see serving.control.models.Model."""

    def __init__(self) -> None:
        spec = FeatureSpec.model_validate(
            {
                "inputs": [{"name": "values", "dtype": "FP32", "width": WIDTH}],
                "features": [{"name": "values", "inputs": ["values"], "output": "dense"}],
            }
        )
        self.signature = ModelSignature("echo", spec.inputs, [OutputSignature("values", "FP32", (WIDTH,))], ROWS)

    def answers(self, version: str) -> bool:
        """Returns True for every version."""
        return True

    #: Nobody looks at its requests.
    tap = None

    def check_load(self) -> None:
        """Never refuses a request for overload."""

    async def infer(self, columns: Mapping[str, Column], batch: int, timeout_us: int = 0, **_: Any) -> InferenceResult:
        """Returns the values that the request brought."""
        values = columns["values"].values
        assert isinstance(values, np.ndarray)
        return InferenceResult([values.reshape(batch, WIDTH)], _Name())  # type: ignore[arg-type]


class _Models:
    def __init__(self) -> None:
        self._echo = _Echo()
        self._regions: Regions = SharedRegions(0)

    def find(self, name: str, version: str, routing_key: str) -> _Echo:
        return self._echo

    @property
    def regions(self) -> Regions:
        return self._regions


class _NothingElse:
    """A control API without any route; see serving.http.app.HttpControl."""

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(404)

    def at_once(self, request: HttpRequest) -> HttpResponse | None:
        """See HttpControl."""
        return None


async def _bare(scope: Any, receive: Any, send: Any) -> None:
    """Returns the request's own tensor with the least work that an ASGI application can do."""
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    body = b"".join(parts)
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _serve(which: str, port: int) -> None:
    with listen("127.0.0.1", port, "port") as bound:
        if which == "asgi":
            config = uvicorn.Config(
                _bare, http="httptools", loop="none", lifespan="off", access_log=False, log_config=None
            )
            await uvicorn.Server(config).serve(sockets=[bound])
            return
        app = HttpApp(_Models(), _NothingElse(), Gate(ServerConfig(model_repository=Path())), Observer(0, 0))
        await http_server(app, HttpLimits(ServerConfig(model_repository=Path())), 1.0).serve(sockets=[bound])


if __name__ == "__main__":
    run_on_loop(_serve(sys.argv[1], int(sys.argv[2])))
