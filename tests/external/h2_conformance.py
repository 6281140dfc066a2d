"""Sends the frames of tests/external/h2_vectors.py to the gRPC port, and floods of frames after them.

    python -m tests.external.h2_conformance               # natively, as built
    python -m tests.external.h2_conformance --aio         # the Python path's server, grpc.aio, alone

Each vector is sent around two calls: one that native code answers, and one that is passed on. Where the connection
goes on, another call on it has to be answered with OK. Exit code 0 when all outcomes are allowed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import psutil
from tritonclient.grpc import service_pb2

from tests.external import h2_frames as h2
from tests.external.h2_floods import FLOODS, Flood
from tests.external.h2_peer import TIMEOUT_S, Peer
from tests.external.h2_vectors import ANSWERED, IGNORED, REFUSED, Call, Vector, vectors
from tests.integration.serving.conftest import Published
from tests.integration.serving.native_clients import tensors
from tests.support.server_process import ServerProcess

_PROOF = 101
# Connections of one flood, how long one may hold the attacker up, and by how much memory may grow for all.
_FLOOD_CONNECTIONS, _FLOOD_S, _FLOOD_MIB = 4, 3.0, 100


def unary(path: str, message: bytes) -> Call:
    """Returns a unary call of gRPC."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    return Call(fields, b"\0" + struct.pack(">I", len(message)) + message)


def infer_call(published: Published) -> Call:
    """Returns a call that native code answers."""
    request = service_pb2.ModelInferRequest(model_name="ranker")
    names = {"int64": "INT64", "float32": "FP32"}
    for name, values in tensors(published, 1).items():
        request.inputs.add(name=name, datatype=names[values.dtype.name], shape=np.shape(values))
        request.raw_input_contents.append(values.tobytes())
    return unary("/inference.GRPCInferenceService/ModelInfer", request.SerializeToString())


def live_call() -> Call:
    """Returns a call that is passed on."""
    return unary("/inference.GRPCInferenceService/ServerLive", b"")


def outcome(port: int, vector: Vector, proof: Call) -> str:
    """Sends a vector and returns what came of it; see tests/external/h2_vectors.py."""
    with Peer(port, vector.begin) as peer:
        peer.send(vector.data)
        try:
            peer.settle()
            begun = [number for number in (1, 5) if number in _streams_of(vector.data)]
            if IGNORED not in vector.outcomes and not peer.goaway:
                for number in begun:
                    peer.wait_for(number)
            if peer.goaway and not peer.has_ended:
                peer.wait_for(_PROOF)  # it has to end
        except TimeoutError:
            return f"nothing within {TIMEOUT_S:g} s; GOAWAY {peer.goaway or 'did not come'}"
        if peer.has_ended:
            return f"connection {peer.goaway}" if peer.goaway else "connection"
        found = IGNORED
        for stream in peer.streams.values():
            if stream.reset and not stream.is_ended:
                found = f"stream {stream.reset}"
            elif stream.is_ended:
                found = ANSWERED if stream.is_ok else REFUSED
        peer.send(proof.sent(_PROOF) + h2.window_update(_PROOF, 1 << 20))
        try:
            answered = peer.wait_for(_PROOF)
        except TimeoutError:
            return f"{found}, but a further call is not answered"
        if peer.has_ended and peer.goaway in ("", "NO_ERROR"):
            return f"{found}, then ended"
        if not answered.is_ok:
            return f"{found}, but a further call is answered with {answered.fields}, reset {answered.reset!r}"
        return found


def _streams_of(data: bytes) -> set[int]:
    """Returns the streams of the frames in bytes, as far as they are frames."""
    found, at = set(), 0
    while at + 9 <= len(data):
        found.add(int.from_bytes(data[at + 5 : at + 9]) & 0x7FFFFFFF)
        at += 9 + int.from_bytes(data[at : at + 3])
    return found


def is_allowed(vector: Vector, found: str) -> bool:
    """Returns whether an outcome is among those of a vector. A connection may end without saying why."""
    ends = any(each.startswith("connection") for each in vector.outcomes)
    return found in vector.outcomes or (found == "connection" and ends)


def findings(port: int, calls: dict[str, Call], threads: int = 8, only: str = "") -> Iterator[tuple[str, Vector, str]]:
    """Sends all vectors; yields the call, the vector and the outcome of each, in their order."""
    with ThreadPoolExecutor(threads) as pool:
        for name, call in calls.items():
            every = [vector for vector in vectors(call) if only in vector.name]
            outcomes = pool.map(partial(outcome, port, proof=call), every)
            for vector, found in zip(every, outcomes, strict=True):
                yield name, vector, found


def flood(server: ServerProcess, attack: Flood, call: Call) -> tuple[str, float]:
    """Floods a server on some connections, which then stay a moment.

    Returns what was wrong, and by how many MiB the server's memory was larger than before.
    """
    before = _memory_mib(server)
    wrong = ""
    with contextlib.ExitStack() as ends:
        for _ in range(_FLOOD_CONNECTIONS):
            end = ends.enter_context(socket.create_connection(("127.0.0.1", server.grpc_port), timeout=_FLOOD_S))
            # Nothing is read: what the server has to say waits there.
            with contextlib.suppress(ConnectionError, TimeoutError):
                end.sendall(h2.PREFACE + h2.settings())
                for piece in attack.frames(call):
                    end.sendall(piece)
        # The server may be at it still.
        larger = 0.0
        for _ in range(10):
            larger = max(larger, _memory_mib(server) - before)
            time.sleep(0.1)
        with Peer(server.grpc_port, h2.PREFACE + h2.settings()) as peer:
            peer.send(call.sent())
            try:
                if not (found := peer.wait_for(1)).is_ok:
                    wrong = f"a call beside it is answered with {found}"
            except TimeoutError:
                wrong = "a call beside it is not answered"
    if server.process.poll() is not None:
        wrong = f"the server has ended with {server.process.returncode}"
    if larger > _FLOOD_MIB:
        wrong = wrong or f"memory grew by more than {_FLOOD_MIB} MiB"
    return wrong, larger


def _memory_mib(server: ServerProcess) -> float:
    own = psutil.Process(server.process.pid)
    return sum(each.memory_info().rss for each in [own, *own.children(recursive=True)]) / (1 << 20)


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.external.h2_conformance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--all", action="store_true", help="print every outcome")
    parser.add_argument("--floods", action="store_true", help="send the floods too")
    parser.add_argument("--only", default="", help="vectors whose name has this in it")
    options = parser.parse_args()
    published = Published(3)
    wrong = count = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        published.publish(folder / "models" / "ranker")
        with ServerProcess(folder / "models", folder / "store", folder / "log") as server:
            calls = {"ModelInfer": infer_call(published), "ServerLive": live_call()}
            for kind, vector, found in findings(server.grpc_port, calls, only=options.only):
                count += 1
                bad = not is_allowed(vector, found)
                wrong += bad
                if bad or options.all:
                    mark = "FINDING" if bad else "allowed"
                    wanted = ", ".join(sorted(vector.outcomes))
                    print(f"{mark} {kind}: {vector.name}: {found}; RFC 9113 {vector.section}: {wanted}", flush=True)
            for name, call in calls.items():
                for attack in FLOODS if options.floods else ():
                    why, larger = flood(server, attack, call)
                    wrong += bool(why)
                    count += 1
                    print(
                        f"{'FINDING' if why else 'stood'} flood, {name}: {attack.name}: {larger:+.0f} MiB {why}",
                        flush=True,
                    )
            print(
                f"{count} outcomes, {wrong} findings; native code answered "
                f"{server.metrics().get('emberline_grpc_native_requests_total', 0):g} calls"
            )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
