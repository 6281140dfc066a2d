"""A thousand unusual HTTP requests to this server, to uvicorn with httptools, and to granian, held against the RFCs.

    python -m tests.external.http_campaign                 # a minute; makes build/http-peers the first time
    python -m tests.external.http_campaign --csv FILE      # every case with the three outcomes

An outcome is the status of the unusual request and whether the usual one behind it, on the same connection, was
answered. Ours has to be what RFC 9110 and 9112 ask for (tests/external/http_cases.py says where); where a peer's is
another one, a reason has to be known (tests/external/http_reasons.py). Exit code 0 when both hold, 1 when not, 2 when
the peers could not be installed.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers import PeerMissingError
from benchmarks.peers.environment import call
from tests.external.http_cases import MUST, MUST_NOT, NEXT, Case, cases
from tests.external.http_reasons import reason
from tests.integration.serving.identity_models import write_identity
from tests.support.server_process import ServerProcess, free_ports

FOLDER = Path(__file__).parents[2] / "build" / "http-peers"
PACKAGES = ("uvicorn==0.54.0", "httptools==0.8.0", "granian==2.8.7")
APP = Path(__file__).with_name("http_peer.py")
PEERS = {
    "uvicorn": ["-m", "uvicorn", "--http", "httptools", "--port", "{port}", "--log-level", "critical", "http_peer:app"],
    "granian": ["-m", "granian", "--interface", "asgi", "--port", "{port}", "--log-level", "critical", "http_peer:app"],
}
OURS = "emberline"
QUIET_S, END_S = 1.5, 15.0
SEED = 20261124


class Outcome(NamedTuple):
    """Outcome of one case: the answer to the unusual request, and whether the usual request behind it was answered."""

    #: Status of the first answer, 0 without one.
    status: int
    #: True when the second request was answered with 200.
    is_next_answered: bool
    #: Describes what cannot be read; empty when all can be.
    broken: str = ""

    def __str__(self) -> str:
        following = ", then 200" if self.is_next_answered else ""
        return f"{self.status or 'nothing'}{following}{self.broken and ' ' + self.broken}"


def install() -> Path:
    """Returns the Python of the peers, which is installed once. Raises PeerMissingError."""
    python = FOLDER / "bin" / "python"
    if not python.exists():
        call([sys.executable, "-m", "venv", str(FOLDER)])
    call([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES])
    return python


@contextlib.contextmanager
def peer(python: Path, arguments: list[str], folder: Path) -> Iterator[int]:
    """Returns a peer's port once it listens."""
    (port,) = free_ports(1)
    command = [str(python), *(argument.format(port=port) for argument in arguments)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=APP.parent, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if time.monotonic() > end:
                raise PeerMissingError(f"{arguments[1]} does not start: {(folder / 'log').read_text()[-300:]}")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def ask(port: int, case: Case) -> Outcome:
    """Sends a case, and the usual request behind it, and returns the outcome."""
    data = case.draft.written() + NEXT
    size = -(-len(data) // case.draft.pieces)
    is_head = case.draft.method == b"HEAD"
    got = b""
    with socket.create_connection(("127.0.0.1", port), timeout=END_S) as end:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError):
            for at in range(0, len(data), size):
                end.sendall(data[at : at + size])
                if case.draft.pieces > 1:
                    time.sleep(0.002)
        # A busy machine may delay an answer that has to come; only an answer that may stay away has a short wait.
        awaited = 2 if case.next == MUST else 1
        with contextlib.suppress(TimeoutError, ConnectionError):
            while True:
                come = len(read_answers(got, first_is_head=is_head)[0])
                end.settimeout(END_S if come < awaited else QUIET_S)
                if not (piece := end.recv(65_536)):
                    break
                got += piece
    statuses, broken = read_answers(got, first_is_head=is_head)
    status = statuses[0] if statuses else 0
    if not broken and len(statuses) > 2:
        broken = f"{len(statuses)} answers: {statuses}"
    return Outcome(status, len(statuses) == 2 and statuses[1] == 200, broken)


def read_answers(data: bytes, *, first_is_head: bool) -> tuple[list[int], str]:
    """Returns the statuses of all responses but those of 1xx, and what was wrong with their framing."""
    statuses: list[int] = []
    while data:
        head, found, data = data.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        version, _, rest = lines[0].partition(b" ")
        if not found or not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            return statuses, f"no response: {lines[0][:60]!r}"
        status = int(rest[:3])
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])
        }
        if status < 200:
            continue
        statuses.append(status)
        if (first_is_head and len(statuses) == 1) or status in (204, 304):
            continue
        if b"content-length" in headers:
            length = int(headers[b"content-length"])
            if len(data) < length:
                return statuses, "a response that ends too early"
            data = data[length:]
        elif headers.get(b"transfer-encoding") == b"chunked":
            while True:
                line, _, data = data.partition(b"\r\n")
                length = int(line.partition(b";")[0] or b"0", 16)
                data = data[length + 2 :]
                if not length:
                    break
        else:
            return statuses, ""  # The body ends with the connection.
    return statuses, ""


def fault(case: Case, found: Outcome) -> str:
    """Returns what the RFCs find wrong with an outcome, "" for nothing."""
    if found.broken:
        return found.broken
    if found.status not in case.statuses:
        return f"the status is none of {sorted(case.statuses)}"
    if case.next == MUST and not found.is_next_answered:
        return "what came behind it was not answered"
    if case.next == MUST_NOT and found.is_next_answered:
        return "what came behind it was answered"
    return ""


def run(count: int, seed: int) -> tuple[list[Case], dict[str, list[Outcome]]]:
    """Returns the outcomes of all cases, by server. Raises PeerMissingError."""
    python = install()
    every = list(cases(count, seed))
    outcomes: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(32) as threads:
        folder = Path(name)
        write_identity(folder / "models", "echo", {"A": ("FP32", [4])}, max_batch=64)
        with ServerProcess(folder / "models", folder / "store", folder / "log") as server:
            outcomes[OURS] = list(threads.map(lambda case: ask(server.http_port, case), every))
        for who, arguments in PEERS.items():
            with peer(python, arguments, folder) as port:
                outcomes[who] = list(threads.map(lambda case, port=port: ask(port, case), every))
    return every, outcomes


def report(every: list[Case], outcomes: dict[str, list[Outcome]]) -> int:
    """Prints the findings; returns the number of our faults and of differences without a reason."""
    ours = outcomes[OURS]
    faults = {
        who: [fault(case, found) for case, found in zip(every, those, strict=True)] for who, those in outcomes.items()
    }
    print(f"{len(every)} requests")
    for who, found_of in faults.items():
        print(f"{who:<10} {sum(map(bool, found_of)):>4} outcomes that the RFCs do not allow")
    wrong = 0
    for case, found, why in zip(every, ours, faults[OURS], strict=True):
        if why:
            wrong += 1
            print(f"OURS IS WRONG: {case.name}: {found}; {why}; see {', '.join(c.rfc for c in case.changes)}")
    for who in PEERS:
        reasons: Counter[str] = Counter()
        for case, mine, theirs in zip(every, ours, outcomes[who], strict=True):
            if mine[:2] == theirs[:2] and not theirs.broken:
                continue
            mistakes = sum(change.statuses is not None for change in case.changes)
            known = reason([change.name for change in case.changes], who, mistakes=mistakes)
            if known:
                reasons[known] += 1
            else:
                wrong += 1
                print(f"NO REASON KNOWN: {case.name}: we {mine}, {who} {theirs}")
        print(f"\n{sum(reasons.values())} differences to {who}")
        for text, number in reasons.most_common():
            print(f"  {number:>4}  {text}")
    return wrong


def main() -> int:
    """Parses the command line, runs, reports."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.external.http_campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=SEED, help=f"of what is drawn; default: {SEED}")
    parser.add_argument("--csv", type=Path, help="a file for every case with the outcomes")
    options = parser.parse_args()
    try:
        every, outcomes = run(options.requests, options.seed)
    except PeerMissingError as error:
        print(f"skipped: the peers could not be had: {error}", file=sys.stderr)
        return 2
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["case", *outcomes])
            writer.writerows(zip([case.name for case in every], *outcomes.values(), strict=True))
    return int(report(every, outcomes) > 0)


if __name__ == "__main__":
    sys.exit(main())
