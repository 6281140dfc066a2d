"""The locust users. Each sends requests as fast as the answers come back (a closed loop), drawn from --data.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8000 --model movielens --data test.parquet

opens locust's web page on port 8089; `python -m loadtest` runs the same users headless.
"""

from __future__ import annotations

import json
import random
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import grpc
import grpc.experimental.gevent
from locust import FastHttpUser, User, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from tritonclient.grpc import service_pb2, service_pb2_grpc

from loadtest.access import access_headers
from loadtest.bodies import binary_body, grpc_request, json_body
from loadtest.latency import Latencies
from loadtest.rows import RequestSource, Tensor, model_inputs

# grpc waits in its own threads unless told that gevent schedules this process.
grpc.experimental.gevent.init_gevent()

# Requests prepared before the first is sent, so that the generator's own work is sending and receiving.
PREPARED_REQUESTS = 256
TIMEOUT_S = 30.0
ACCESS = access_headers()


@events.init_command_line_parser.add_listener
def _add_options(parser: LocustArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="Name of the model to ask.")
    parser.add_argument(
        "--data",
        required=True,
        help="File, folder, pattern or URL of rows with the columns of the model's training.",
    )
    parser.add_argument("--items", type=int, default=32, help="Rows a request.")
    parser.add_argument("--grpc", default="127.0.0.1:8001", help="Address of the gRPC port.")
    parser.add_argument("--seed", type=int, default=1, help="The same seed sends the same requests.")
    parser.add_argument("--figures", default="", help="Write exact latencies of the run to this JSON file.")


_latencies = Latencies()


@events.init.add_listener
def _prepare(environment: Environment, **_: Any) -> None:
    # Requests are prepared before the run's clock starts, once for all users of a kind: a closed loop must not spend
    # its time on encoding.
    options: Namespace = environment.parsed_options
    try:
        inputs = model_inputs(environment.host, options.model)
        source = RequestSource(options.data, inputs, items=options.items, seed=options.seed)
        drawn = [source.draw() for _ in range(PREPARED_REQUESTS)]
    except (OSError, ValueError) as error:
        sys.exit(f"loadtest: cannot prepare requests for {options.model!r} at {environment.host}: {error}")
    for kind in environment.user_classes:
        kind.requests = [kind.encode(options.model, tensors) for tensors in drawn]


@events.test_start.add_listener
def _start(**_: Any) -> None:
    _latencies.clear()


@events.request.add_listener
def _record(response_time: float, exception: BaseException | None, **_: Any) -> None:
    _latencies.add(response_time, failed=exception is not None)


@events.quitting.add_listener
def _write(environment: Environment, **_: Any) -> None:
    path = environment.parsed_options.figures
    if path:
        Path(path).write_text(json.dumps(_latencies.figures()))


class HttpBinaryUser(FastHttpUser):
    """KServe v2 over HTTP with binary tensors."""

    network_timeout = connection_timeout = TIMEOUT_S
    requests: ClassVar[list[tuple[bytes, int]]] = []

    @staticmethod
    def encode(model: str, tensors: Sequence[Tensor]) -> tuple[bytes, int]:
        """Encodes a request for the wire, and returns the length of its JSON part."""
        return binary_body(tensors)

    @task
    def infer(self) -> None:
        """Sends one request."""
        body, header_bytes = random.choice(self.requests)
        path = f"/v2/models/{self.environment.parsed_options.model}/infer"
        headers = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(header_bytes),
            **ACCESS,
        }
        with self.client.post(path, data=body, headers=headers, name="http binary", catch_response=True) as answer:
            if answer.status_code != 200:
                answer.failure(f"{answer.status_code}: {answer.text}")


class HttpJsonUser(FastHttpUser):
    """KServe v2 over HTTP, all JSON."""

    network_timeout = connection_timeout = TIMEOUT_S
    requests: ClassVar[list[bytes]] = []

    @staticmethod
    def encode(model: str, tensors: Sequence[Tensor]) -> bytes:
        """Encodes a request for the wire."""
        return json_body(tensors)

    @task
    def infer(self) -> None:
        """Sends one request."""
        path = f"/v2/models/{self.environment.parsed_options.model}/infer"
        headers = {"Content-Type": "application/json", **ACCESS}
        with self.client.post(
            path, data=random.choice(self.requests), headers=headers, name="http json", catch_response=True
        ) as answer:
            if answer.status_code != 200:
                answer.failure(f"{answer.status_code}: {answer.text}")


class GrpcUser(User):
    """KServe v2 over gRPC with raw tensors."""

    requests: ClassVar[list[service_pb2.ModelInferRequest]] = []

    @staticmethod
    def encode(model: str, tensors: Sequence[Tensor]) -> service_pb2.ModelInferRequest:
        """Makes the message; it is serialised when it is sent."""
        return grpc_request(model, tensors)

    def on_start(self) -> None:
        """Opens a channel of its own."""
        options = self.environment.parsed_options
        self._channel = grpc.insecure_channel(options.grpc, options=[("grpc.use_local_subchannel_pool", 1)])
        self._infer = service_pb2_grpc.GRPCInferenceServiceStub(self._channel).ModelInfer

    def on_stop(self) -> None:
        """Closes the channel."""
        self._channel.close()

    @task
    def infer(self) -> None:
        """Sends one request."""
        request = random.choice(self.requests)
        began = time.perf_counter()
        failure: Exception | None = None
        length = 0
        try:
            length = self._infer(request, timeout=TIMEOUT_S, metadata=tuple(ACCESS.items())).ByteSize()
        except grpc.RpcError as error:
            failure = error
        self.environment.events.request.fire(
            request_type="grpc",
            name="grpc",
            response_time=(time.perf_counter() - began) * 1000,
            response_length=length,
            exception=failure,
            context={},
        )
