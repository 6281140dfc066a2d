"""Fuzzes the native HTTP server against the Python path: both have to give the same answer to every request.

python -m tests.fuzz.native --seconds 600

Each input is an inference request with anything in it. It is sent as it is, and once more with a header that makes it a
request for Python.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.fuzz.campaign import Campaign, read_options
from tests.fuzz.connection import Answer, Connection, NoAnswer
from tests.fuzz.http_inputs import Framed, infer_request
from tests.fuzz.served import Sampler, Served, run_served

_CHECK_EVERY = 5_000
_FOR_PYTHON = {"te": "trailers"}
# A short timeout passes or does not, whoever answers.
_OF_CHANCE = frozenset({503, 504})


def run(campaign: Campaign, served: Served) -> None:
    """Sends inputs until the campaign is over."""
    by_python = Connection(served.http_port)
    checked = 0
    with Sampler(served):
        while not campaign.is_over():
            request = infer_request(campaign.rng())
            if why := _compare(campaign, served, request, by_python):
                campaign.find(why, request.encode())
            if campaign.done - checked >= _CHECK_EVERY:
                checked = campaign.done
                campaign.complain(served.troubles())
    by_python.close()
    campaign.complain(served.troubles())


def replay(served: Served, data: bytes) -> list[str]:
    """Sends one saved input both ways, and says what came."""
    connection = Connection(served.http_port)
    line, _, rest = data.partition(b"\r\n")
    said = []
    for head in (line, line + b"\r\n" + b"".join(f"{name}: {text}".encode() for name, text in _FOR_PYTHON.items())):
        connection.send(head + b"\r\n" + rest)
        said.append(repr(connection.until_quiet(3.0)[:4000]))
    return [*said, *served.troubles()]


def _compare(campaign: Campaign, served: Served, request: Framed, by_python: Connection) -> str:
    """Returns how the answers differ; "" when they do not."""
    # A connection with several requests that were handed over stays with Python.
    found: list[Answer] = []
    own = Connection(served.http_port)
    for connection, headers in ((own, {}), (by_python, _FOR_PYTHON)):
        connection.send(Framed(request.method, request.path, {**request.headers, **headers}, request.body).encode())
        try:
            found.append(connection.read())
        except NoAnswer as error:
            connection.close()
            campaign.note("none")
            return str(error)
        if found[-1].closes:
            connection.close()
    own.close()
    native, python = found
    campaign.note(str(native.status))
    if native == python or {native.status, python.status} & _OF_CHANCE:
        return ""
    return f"native: {native.status} {native.content[:500]!r}\n  Python: {python.status} {python.content[:500]!r}"


def main() -> int:
    """Runs the command line."""
    options = read_options()
    campaign = Campaign("native", options.seconds, options.inputs, options.seed)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, Served(Path(folder)) as served:
        if options.replay is not None:
            print("\n".join(replay(served, options.replay.read_bytes())))
            return 0
        run_served(campaign, served, run)
    return campaign.finish()


if __name__ == "__main__":
    sys.exit(main())
