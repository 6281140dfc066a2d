"""The locust users. Each sends prepared requests over a connection of its own, at the times that the pace gives it.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8000 --model movielens --data test.parquet

opens locust's web page on port 8089: a closed loop, in which each user sends its next request when it has the response,
or with --rate an open loop of that many requests a second. `emberline loadtest` runs the same users without the page.
"""

from __future__ import annotations

import itertools
import socket
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import gevent
import grpc
import grpc.experimental.gevent
import orjson
from locust import User, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from loadtest.access import access_headers
from loadtest.channel import INFER, open_channel
from loadtest.control import Control
from loadtest.counts import SecondCounts
from loadtest.figures import latency_figures
from loadtest.pacing import Pace, Timer
from loadtest.prepared import Prepared, encode
from loadtest.rows import RequestSource, model_inputs
from loadtest.wire import HttpConnection, Tls, request_begin, whole_request

# grpc waits in its own threads unless told that gevent schedules this process.
grpc.experimental.gevent.init_gevent()

# Requests prepared before the first is sent, so that the generator's own work is sending and receiving.
PREPARED_REQUESTS = 256
TIMEOUT_S = 30.0
ACCESS = access_headers()
# A phase without an end, for locust's own commands.
ENDLESS = 10**9


@events.init_command_line_parser.add_listener
def _add_options(parser: LocustArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="Name of the model to ask.")
    parser.add_argument(
        "--data",
        default="",
        help="File, folder, pattern or URL of rows with the columns of the model's training.",
    )
    parser.add_argument("--prepared", default="", help="Folder of prepared requests, instead of --data.")
    parser.add_argument("--items", type=int, default=32, help="Rows a request.")
    parser.add_argument("--rate", type=float, default=0.0, help="Requests a second (open loop); 0: a closed loop.")
    parser.add_argument("--grpc", default="127.0.0.1:8001", help="Address of the gRPC port.")
    parser.add_argument("--seed", type=int, default=1, help="The same seed sends the same requests.")
    parser.add_argument("--figures", default="", help="Write exact latencies of the run to this JSON file.")
    parser.add_argument("--ca", default="", help="Certificate of who signed the server's, for https.")
    parser.add_argument("--cert", default="", help="Certificate of one's own, where the server asks for one.")
    parser.add_argument("--key", default="", help="Its key.")
    parser.add_argument("--control", type=int, default=-1, help="Descriptor of the connection to `emberline loadtest`.")
    parser.add_argument("--index", type=int, default=0, help="Number of this process among --of.")
    parser.add_argument("--of", type=int, default=1, help="Processes that share the load.")


class _Run:
    """Holds the state that the users of this process share."""

    pace = Pace()
    options = Namespace()
    began = 0.0
    numbers = itertools.count()


@events.init.add_listener
def _prepare(environment: Environment, **_: Any) -> None:
    # Requests are prepared before the run's clock starts, once for all users of a kind: a closed loop must not spend
    # its time on encoding.
    options: Namespace = environment.parsed_options
    _Run.options, _Run.pace = options, Pace(options.index, options.of)
    if options.control >= 0:
        environment.events.spawning_complete.add_listener(lambda user_count, **_: _serve(environment, user_count))
    if options.prepared:
        for kind in environment.user_classes:
            kind.prepared = Prepared.load(Path(options.prepared))
        return
    try:
        inputs = model_inputs(environment.host, options.model)
        source = RequestSource(options.data, inputs, items=options.items, seed=options.seed)
        drawn = [source.draw() for _ in range(PREPARED_REQUESTS)]
    except (OSError, ValueError) as error:
        sys.exit(f"loadtest: cannot prepare requests for {options.model!r} at {environment.host}: {error}")
    for kind in environment.user_classes:
        kind.prepared = encode(kind.kind, options.model, [drawn])


def _serve(environment: Environment, users: int) -> None:
    connection = socket.socket(fileno=_Run.options.control)
    Control(connection, _Run.pace, environment.runner.quit).start(users)


class _Whole:
    """The counts of a run of locust's own commands, which has one phase without an end."""

    def __init__(self) -> None:
        self.counts, self.began, self.ended = SecondCounts(), time.monotonic(), time.monotonic()

    def take(self) -> None:
        """Adds what was counted since the last call."""
        phase = _Run.pace.phase
        if phase is not None:
            for each in phase.take_counts().values():
                self.counts.merge(each)
        self.ended = time.monotonic()

    def follow(self) -> None:
        """Takes the counts every second, so that they do not become many."""
        while _whole is self:
            gevent.sleep(1.0)
            self.take()


_whole = _Whole()


@events.test_start.add_listener
def _start(**_: Any) -> None:
    global _whole
    _Run.numbers, _Run.began = itertools.count(), time.monotonic()
    if _Run.options.control < 0:
        rate = _Run.options.rate
        load = {"rate": [rate, rate]} if rate else {"users": ENDLESS}
        _Run.pace.begin({"number": 0, "begin": time.monotonic(), "seconds": ENDLESS, **load})
        _whole = _Whole()
        gevent.spawn(_whole.follow)


@events.test_stop.add_listener
def _stop(**_: Any) -> None:
    _whole.take()


@events.quitting.add_listener
def _write(environment: Environment, **_: Any) -> None:
    path = environment.parsed_options.figures
    if path:
        _whole.take()
        figures = latency_figures(_whole.counts, _whole.ended - _whole.began)
        Path(path).write_bytes(orjson.dumps(figures))  # null where there is no number, because there were no requests


class _Sender(User):
    """Sends one request after the other when they are due."""

    abstract = True
    kind = ""
    prepared: ClassVar[Prepared]

    def on_start(self) -> None:
        """Takes a number and opens a connection."""
        self._timer, self._number = Timer(), next(_Run.numbers)
        self.connect()

    def on_stop(self) -> None:
        """Closes the connection."""
        self._timer.close()
        self.disconnect()

    @task
    def infer(self) -> None:
        """Waits until a request is due, and sends it."""
        turn = _Run.pace.take(self._number, self._timer)
        number = turn.number * _Run.options.of + _Run.options.index
        error, length = self.send(self.prepared.pick(number, turn.due - _Run.began))
        latency = _Run.pace.record(turn, error)
        if _Run.options.control >= 0:
            return  # nobody reads locust's own statistics, which would cost more than the sending
        self.environment.events.request.fire(
            request_type=self.kind,
            name=self.kind,
            response_time=latency,
            response_length=length,
            exception=None if error is None else RuntimeError(error),
            context={},
        )

    def connect(self) -> None:
        """Opens a connection, at the latest when the first request is sent."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Closes it."""
        raise NotImplementedError

    def send(self, place: int) -> tuple[str | None, int]:
        """Sends a prepared request; returns what went wrong, and the bytes of the answer."""
        raise NotImplementedError


class _HttpSender(_Sender):
    abstract = True
    content_type = ""

    def connect(self) -> None:
        """Makes the connection; it opens with the first request."""
        options = _Run.options
        tls = Tls(options.ca, options.cert, options.key)
        self._connection = HttpConnection(self.environment.host, tls, TIMEOUT_S)
        headers = {"Content-Type": self.content_type, **ACCESS}
        self._begin = request_begin(self.environment.host, quote(options.model, safe=""), headers)

    def disconnect(self) -> None:
        """Closes it."""
        self._connection.close()

    def send(self, place: int) -> tuple[str | None, int]:
        """Sends a request, and reads the response."""
        request = whole_request(self._begin, self.prepared.body(place), self.prepared.headers[place])
        try:
            answer = self._connection.ask(request)
        except OSError as error:
            return f"{type(error).__name__}: {error}", 0
        if answer.status != 200:
            return f"{answer.status}: {answer.reason}", answer.length
        return None, answer.length


class HttpBinaryUser(_HttpSender):
    """KServe v2 over HTTP with binary tensors."""

    kind = "http_binary"
    content_type = "application/octet-stream"


class HttpJsonUser(_HttpSender):
    """KServe v2 over HTTP, all JSON."""

    kind = "http_json"
    content_type = "application/json"


class GrpcUser(_Sender):
    """KServe v2 over gRPC with raw tensors. The messages are serialised beforehand."""

    kind = "grpc"

    def connect(self) -> None:
        """Opens a channel of its own."""
        options = _Run.options
        tls = Tls(options.ca, options.cert, options.key) if self.environment.host.startswith("https:") else None
        self._channel = open_channel(options.grpc, tls)
        self._infer = self._channel.unary_unary(INFER)

    def disconnect(self) -> None:
        """Closes it."""
        self._channel.close()

    def send(self, place: int) -> tuple[str | None, int]:
        """Makes a call."""
        try:
            return None, len(self._infer(self.prepared.body(place), timeout=TIMEOUT_S, metadata=tuple(ACCESS.items())))
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}", 0
