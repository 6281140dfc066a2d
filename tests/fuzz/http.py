"""Fuzzes the HTTP port of a real server over raw sockets.

python -m tests.fuzz.http --seconds 600

Nine inputs in ten are well-framed requests with anything in them: they travel several at a time, and each must have its
answer. The rest are bytes that may be no HTTP at all, each on a connection of its own: that must end.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

from tests.fuzz.campaign import Campaign, read_options
from tests.fuzz.connection import Answer, Connection, NoAnswer
from tests.fuzz.http_inputs import Framed, framed_request, raw_input
from tests.fuzz.served import Sampler, Served, run_served

_CONNECTIONS = 6
# On each connection, ahead of their answers.
_AHEAD = 4
_RAW_SHARE = 0.1
_RAW_END_S = 15.0
_CHECK_EVERY = 20_000
_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")
# Documented faults of a server that is well: it does not do it, it is busy, it was too late.
_FINE = frozenset({501, 503, 504, 505})


def run(campaign: Campaign, served: Served) -> None:
    """Sends inputs until the campaign is over."""
    connections = [Connection(served.http_port) for _ in range(_CONNECTIONS)]
    checked = 0
    try:
        with Sampler(served):
            while not campaign.is_over():
                if campaign.rng().random() < _RAW_SHARE * _CONNECTIONS * _AHEAD / 10:
                    for _ in range(10):
                        _send_raw(campaign, served, raw_input(campaign.rng()))
                else:
                    _send_framed(campaign, served, connections)
                if campaign.done - checked >= _CHECK_EVERY:
                    checked = campaign.done
                    campaign.complain(served.troubles())
        campaign.complain(served.troubles())
    finally:
        for connection in connections:
            connection.close()


def replay(served: Served, data: bytes) -> list[str]:
    """Sends one saved input, and says what came."""
    connection = Connection(served.http_port)
    connection.send(data)
    return [repr(connection.until_quiet(3.0)[:4000]), *served.troubles()]


def _send_framed(campaign: Campaign, served: Served, connections: list[Connection]) -> None:
    sent: list[tuple[Connection, list[Framed]]] = []
    for connection in connections:
        requests = []
        for _ in range(_AHEAD):
            requests.append(framed_request(campaign.rng()))
            campaign.done += 1
        connection.send(b"".join(request.encode() for request in requests))
        sent.append((connection, requests))
    for connection, requests in sent:
        for place, request in enumerate(requests):
            try:
                answer = connection.read(has_body=request.method != "HEAD")
            except NoAnswer as error:
                beside = (
                    "; a good request beside it: " + (" ".join(served.troubles()) or "answered")
                    if error.is_late
                    else ""
                )
                connection.close()
                campaign.find(f"{error}, to one of these{beside}", _whole(requests[place:]))
                break
            campaign.answers[str(answer.status)] += 1
            if why := _wrong(answer, request):
                campaign.find(why, request.encode())
            if answer.closes:
                # What was sent behind it is not answered, and was not promised to be.
                campaign.answers["behind a close"] += len(requests) - place - 1
                connection.close()
                break


def _wrong(answer: Answer, request: Framed) -> str:
    status = answer.status
    if status == 200:
        return ""
    if status >= 500 and status not in _FINE:
        return f"status {status}: {answer.content[:500]!r}"
    is_silent = request.method == "HEAD" or (status == 400 and request.path.partition("?")[0].endswith("/ready"))
    if is_silent:
        return ""
    try:
        said = json.loads(answer.content)
    except ValueError:
        said = None
    if not (isinstance(said, dict) and said.keys() == {"error"} and isinstance(said["error"], str)):
        return f"status {status} without an error's text: {answer.content[:500]!r}"
    return ""


def _send_raw(campaign: Campaign, served: Served, data: bytes) -> None:
    connection = Connection(served.http_port)
    connection.send(data)
    try:
        statuses = [int(status) for status in _STATUS.findall(connection.rest(_RAW_END_S))]
    except NoAnswer as error:
        campaign.find(str(error), data)
        statuses = []
    bad = [status for status in statuses if status >= 500 and status not in _FINE]
    if bad:
        campaign.find(f"status {bad[0]} to bytes", data)
    campaign.note(f"raw {statuses[0] if statuses else 'ended'}")


def _whole(requests: list[Framed]) -> bytes:
    return b"".join(request.encode() for request in requests)


def main() -> int:
    """Runs the command line."""
    options = read_options()
    campaign = Campaign("http", options.seconds, options.inputs, options.seed)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, Served(Path(folder)) as served:
        if options.replay is not None:
            print("\n".join(replay(served, options.replay.read_bytes())))
            return 0
        run_served(campaign, served, run)
    return campaign.finish()


if __name__ == "__main__":
    sys.exit(main())
