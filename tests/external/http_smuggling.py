"""Sends every vector of tests/external/http_vectors.py to a server, whole and in pieces, among plain requests.

    python -m tests.external.http_smuggling              # every vector, cut at 25 places; some minutes
    python -m tests.external.http_smuggling --cuts 0     # cut at every byte

A plain request that native code answers stands before a vector, behind it, or both, on the same connection. Its answer
has to be right, or must not come where the vector ends the connection; and what native code answers is compared with
what the Python path answers to the same request. Exit code 0 when all is as the list says, 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.external.http_vectors import INSIDE, OPEN, Vector, vectors
from tests.integration.serving.conftest import Published
from tests.integration.serving.native_clients import body_of, request_bytes, tensors
from tests.support.server_process import ServerProcess

TIMEOUT_S = 10.0
_QUIET_S = 0.3
_PAUSE_S = 0.0005
_MOST_PIECES = 800
# Connections at a time: most of them wait for the server to end theirs.
THREADS = 64
# Whether a plain request stands before a vector, and behind it.
PLACES = tuple(itertools.product((False, True), repeat=2))


@dataclass(frozen=True)
class Answer:
    """One answer, without the header Date."""

    status: int
    headers: tuple[bytes, ...]
    content: bytes


class Unexpected(Exception):  # noqa: N818
    """Raised when a server's answers are not those that the list has."""


class Line:
    """One connection to a server, on which pieces of requests are sent and answers are read."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, pieces: Sequence[bytes]) -> None:
        """Sends pieces one after the other. The server may end the connection meanwhile."""
        with contextlib.suppress(ConnectionError):
            for number, piece in enumerate(pieces):
                if number:
                    time.sleep(_PAUSE_S)
                self._socket.sendall(piece)

    def read(self, *, is_head: bool = False) -> Answer:
        """Reads the next answer. Raises Unexpected."""
        while b"\r\n\r\n" not in self._buffer:
            self._more("in front of an answer")
        head, _, rest = self._buffer.partition(b"\r\n\r\n")
        line, *headers = head.split(b"\r\n")
        if not line.startswith(b"HTTP/1.1 ") or not line[9:12].isdigit():
            raise Unexpected(f"this is no answer: {head[:200]!r}")
        status = int(line[9:12])
        lengths = [int(each[15:]) for each in headers if each.startswith(b"content-length:")]
        if len(lengths) != (status >= 200):
            raise Unexpected(f"an answer without one length: {head!r}")
        size = 0 if is_head or not lengths else lengths[0]
        while len(rest) < size:
            self._buffer = b""
            self._more("in an answer")
            rest += self._buffer
        self._buffer = rest[size:]
        kept = tuple(sorted(each for each in headers if not each.startswith(b"date:")))
        return Answer(status, kept, rest[:size])

    def check_end(self) -> None:
        """Checks that the connection ends, and that nothing comes before. Raises Unexpected."""
        if self._buffer or (found := self._receive()):
            raise Unexpected(f"an answer too many: {(self._buffer or found)[:200]!r}")

    def check_quiet(self) -> None:
        """Checks that nothing comes for a while, and that our end of the connection ends it. Raises Unexpected."""
        self._socket.settimeout(_QUIET_S)
        try:
            found = self._buffer or self._socket.recv(65_536)
        except TimeoutError:
            self._socket.settimeout(TIMEOUT_S)
            self._socket.shutdown(socket.SHUT_WR)
            self.check_end()
            return
        raise Unexpected(f"it is not waiting for the rest: {found[:200]!r}")

    def _more(self, where: str) -> None:
        piece = self._receive()
        if not piece:
            raise Unexpected(f"the connection ended {where}")
        self._buffer += piece

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(65_536)
        except TimeoutError:
            raise Unexpected(f"nothing came for {TIMEOUT_S:g} s") from None
        except ConnectionError:
            return b""


class Prober:
    """Sends vectors to a server, with plain requests around them."""

    def __init__(self, port: int, published: Published) -> None:
        self._port = port
        self._values = tensors(published, 1)
        self._numbers = itertools.count()
        self.vectors = vectors(*body_of(self._values))
        # The scores, at the end of the content.
        with Line(port) as line:
            line.send([request_bytes(*body_of(self._values), headers="Authorization: Bearer none\r\n")])
            self._scores = line.read().content[-8:]

    def check(self, vector: Vector, pieces: Sequence[bytes], *, is_led: bool, is_followed: bool) -> list[Answer]:
        """Sends a vector and returns its answers.

        pieces: of the vector's data. is_led, is_followed: whether a plain request is sent right before it, and right
        behind it without waiting for its answers. Raises Unexpected.
        """
        with Line(self._port) as line:
            answers = self.ask(line, vector, pieces, is_led=is_led, is_followed=is_followed)
            self.check_rest(line, vector)
        return answers

    def line(self) -> Line:
        """Opens a connection to the server."""
        return Line(self._port)

    def ask(
        self, line: Line, vector: Vector, pieces: Sequence[bytes], *, is_led: bool, is_followed: bool
    ) -> list[Answer]:
        """Sends a vector, as `check` does, and returns its answers once all that have to come are there."""
        before = after = b""
        if is_led:
            before, first = self._plain()
        if is_followed:
            after, last = self._plain()
        line.send(
            [before + pieces[0], *pieces[1:-1], pieces[-1] + after] if len(pieces) > 1 else [before + pieces[0] + after]
        )
        if is_led:
            self._read_plain(line, first)
        answers = [line.read(is_head=vector.is_head and not place) for place in range(len(vector.statuses))]
        if (found := tuple(answer.status for answer in answers)) != vector.statuses:
            raise Unexpected(f"statuses {found}, not {vector.statuses}: {answers[-1].content[:200]!r}")
        if vector.end == OPEN:
            if not is_followed:
                data, last = self._plain()
                line.send([data])
            self._read_plain(line, last)
        return answers

    def check_rest(self, line: Line, vector: Vector) -> None:
        """Checks what becomes of a connection that is not open any more. It takes a while. Raises Unexpected."""
        if vector.end == INSIDE:
            line.check_quiet()
        elif vector.end != OPEN:
            line.check_end()

    def compare(self, vector: Vector) -> None:
        """Checks that the Python path gives the same answers to a vector. Raises Unexpected."""
        data = vector.by_python()
        if data is None:
            return
        found = self.check(vector, [vector.data], is_led=False, is_followed=False)
        by_python = self.check(vector, [data], is_led=False, is_followed=False)
        if found != by_python:
            raise Unexpected(f"the Python path answers {by_python}, not {found}")

    def _plain(self) -> tuple[bytes, bytes]:
        name = f"plain-{next(self._numbers)}"
        return request_bytes(*body_of(self._values, id=name)), name.encode()

    def _read_plain(self, line: Line, name: bytes) -> None:
        answer = line.read()
        if answer.status != 200 or not answer.content.startswith(b'{"id":"%s",' % name):
            raise Unexpected(f"not the answer to {name!r}: {answer}")
        if answer.content[-8:] != self._scores:
            raise Unexpected(f"other scores than those of the Python path: {answer}")


def cuttings(data: bytes, cuts: int) -> Iterator[list[bytes]]:
    """Yields the ways in which bytes are sent: whole, in two pieces, and in pieces of a byte.

    cuts: the most places at which they are cut in two; 0 for every one.
    """
    yield [data]
    step = 1 if cuts == 0 else max(1, -(-len(data) // (cuts + 1)))
    if len(data) // step > 2 * _MOST_PIECES:
        step = len(data) // _MOST_PIECES
    for place in range(step, len(data), step):
        yield [data[:place], data[place:]]
    size = -(-len(data) // _MOST_PIECES)
    yield [data[place : place + size] for place in range(0, len(data), size)]


def findings(
    prober: Prober, chosen: Sequence[Vector], cuts: int, threads: int, places: int = len(PLACES)
) -> tuple[int, list[str]]:
    """Sends vectors in all ways, so many at a time; returns how many times, and what was wrong.

    places: the number of PLACES at which each way of cutting a vector is tried; where it is not all, they take turns.
    """

    def send(vector: Vector, pieces: list[bytes], is_led: bool, is_followed: bool) -> str | None:
        try:
            prober.check(vector, pieces, is_led=is_led, is_followed=is_followed)
        except Unexpected as error:
            sizes = [len(piece) for piece in pieces][:3]
            return f"{vector.name}, pieces {sizes}, led {is_led}, followed {is_followed}: {error}"
        return None

    def compare(vector: Vector) -> str | None:
        try:
            prober.compare(vector)
        except Unexpected as error:
            return f"{vector.name}: {error}"
        return None

    # Those after which the server waits for a while come first, so that others are sent meanwhile.
    ordered = sorted(chosen, key=lambda vector: vector.end == OPEN)
    with ThreadPoolExecutor(threads) as pool:
        sent = [
            pool.submit(send, vector, pieces, is_led, is_followed)
            for first, vector in enumerate(ordered)
            for number, pieces in enumerate(cuttings(vector.data, cuts), first)
            for is_led, is_followed in (PLACES[(number + each) % len(PLACES)] for each in range(places))
        ]
        compared = [pool.submit(compare, vector) for vector in ordered]
    return len(sent), [text for each in (*sent, *compared) if (text := each.result()) is not None]


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.external.http_smuggling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cuts", type=int, default=25, help="places at which each vector is cut; 0: every one")
    parser.add_argument("--only", default="", help="vectors whose name has this in it")
    parser.add_argument("--threads", type=int, default=THREADS)
    options = parser.parse_args()
    published = Published(3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        published.publish(folder / "models" / "ranker")
        with ServerProcess(folder / "models", folder / "store", folder / "log") as server:
            prober = Prober(server.http_port, published)
            chosen = [vector for vector in prober.vectors if options.only in vector.name]
            count, wrong = findings(prober, chosen, options.cuts, options.threads)
    print("\n".join(wrong))
    print(f"{len(chosen)} vectors, sent {count} times: {len(wrong)} findings")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
