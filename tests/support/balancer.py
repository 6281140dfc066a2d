"""Runs HAProxy with deploy/haproxy/haproxy.cfg in front of replicas on this machine."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.proxies import FOLDER, fetch, running, wait_until
from tests.support.server_process import free_ports

CONFIG = Path(__file__).parents[2] / "deploy" / "haproxy" / "haproxy.cfg"
NAMES = ("one", "two", "three")
# So that tests take seconds; the relations between the times are those of the file.
QUICK = (("inter 1s fastinter 250ms downinter 1s", "inter 200ms fastinter 50ms downinter 200ms"),)


class Balancer:
    """HAProxy on free ports; see `balancer`."""

    def __init__(self, folder: Path) -> None:
        self.http_port, self.grpc_port, self._statistics = free_ports(3)
        self._socket = folder / "haproxy.sock"

    def configuration(self, replicas: Sequence[tuple[int, int]], changes: Sequence[tuple[str, str]]) -> str:
        """Returns the file with the ports of these replicas in it, and those servers left out that are not there."""
        text = CONFIG.read_text()
        for old, new in (
            ("/run/haproxy/admin.sock", str(self._socket)),
            ("bind :8000", f"bind 127.0.0.1:{self.http_port}"),
            ("bind :8001", f"bind 127.0.0.1:{self.grpc_port}"),
            ("bind 127.0.0.1:8404", f"bind 127.0.0.1:{self._statistics}"),
            *changes,
        ):
            assert old in text, old
            text = text.replace(old, new)
        for place, (http, grpc) in enumerate(replicas):
            for port, own in ((8000, http), (8001, grpc)):
                text = text.replace(f"10.0.0.1{place + 1}:{port}", f"127.0.0.1:{own}")
            text = re.sub(rf"(server {NAMES[place]} .* check port) 8000", rf"\g<1> {http}", text)
        return re.sub(r"\n    server \S+ 10\..*", "", text)

    def states(self) -> dict[str, str]:
        """Returns what the health check says of each replica: UP, DOWN, or how far it is on the way."""
        return {row["svname"]: row["status"] for row in self._rows("http") if row["svname"] in NAMES}

    def requests(self, backend: str) -> dict[str, int]:
        """Returns how many requests of a backend each replica got."""
        return {row["svname"]: int(row["stot"]) for row in self._rows(backend) if row["svname"] in NAMES}

    def wait_for(self, state: str, names: Sequence[str]) -> None:
        """Waits until the health check says so of each of these replicas."""
        wait_until(lambda: all(self.states()[name] == state for name in names), f"{names} {state}: {self.states()}")

    def _rows(self, backend: str) -> list[dict[str, str]]:
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(str(self._socket))
            end.sendall(b"show stat\n")
            lines = b"".join(iter(lambda: end.recv(65_536), b"")).decode().splitlines()
        columns = lines[0].lstrip("# ").split(",")
        rows = [dict(zip(columns, line.split(","), strict=False)) for line in lines[1:] if line]
        return [row for row in rows if row["pxname"] == backend]


@contextlib.contextmanager
def balancer(
    folder: Path, replicas: Sequence[tuple[int, int]], changes: Sequence[tuple[str, str]] = QUICK
) -> Iterator[Balancer]:
    """Runs HAProxy in front of replicas, by their HTTP and gRPC ports, until the end of the `with` block.

    changes: to the text of the file. Raises PeerMissingError where HAProxy cannot be had.
    """
    fetch()
    made = Balancer(folder)
    path = folder / "haproxy.cfg"
    path.write_text(made.configuration(replicas, changes))
    with running(
        [FOLDER / "usr" / "sbin" / "haproxy", "-f", path], folder / "haproxy.log", [made.http_port, made.grpc_port]
    ):
        yield made
