"""Retries where that helps: a server that is full or restarting, a connection that broke. Never beyond a deadline.

A request for scores changes nothing, so it may always be sent twice; but not every failure goes away with a retry.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import sys
import time
from typing import Any

# 429: too many requests. 503: the server is full, not ready or stopping. 502: a proxy's answer while it restarts.
WORTH_ANOTHER = {429, 502, 503}
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
REQUEST = {"instances": [{"words": [1, 2, 99], "dense": [0.5, 0.25]}, {"words": [4, 5, 6], "dense": [0.5, 0.25]}]}


class RefusedError(Exception):
    """Holds the server's refusal. retry_after_s: how long it asks the client to wait."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def ask_once(address: str, path: str, content: object, timeout_s: float) -> Any:
    """Returns the answer's JSON. Raises RefusedError where a retry may help, SystemExit where it cannot, OSError."""
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        # A server that refuses a long body answers before it has read it, and closes; the answer can still be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request("POST", path, json.dumps(content), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status == 200:
        return json.loads(text)
    message = f"{answer.status}: {text.decode(errors='replace')[:500]}"
    if answer.status not in WORTH_ANOTHER:
        raise SystemExit(message)
    raise RefusedError(message, float(answer.headers.get("Retry-After", 0)))


def ask(address: str, path: str, content: object, deadline_s: float) -> Any:
    """Calls `ask_once` until it returns an answer or the deadline would pass; then raises the last error."""
    end = time.monotonic() + deadline_s
    pause = FIRST_PAUSE_S
    while True:
        try:
            return ask_once(address, path, content, max(0.001, end - time.monotonic()))
        except (RefusedError, OSError, http.client.HTTPException) as error:
            # A random part, so that clients that were refused together do not come back together.
            wait = max(pause, getattr(error, "retry_after_s", 0.0)) * random.uniform(1.0, 1.5)
            if time.monotonic() + wait >= end:
                raise
            print(f"once more in {wait:.2f} s: {error}", file=sys.stderr)
        time.sleep(wait)
        pause = min(LONGEST_PAUSE_S, pause * 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="127.0.0.1:8000", help="the server's HTTP address, without http://")
    parser.add_argument("--deadline", type=float, default=5.0, help="seconds for all tries together")
    parser.add_argument("--model", default="tiny")
    options = parser.parse_args()
    try:
        answer = ask(options.url, f"/v1/models/{options.model}:predict", REQUEST, options.deadline)
    except (RefusedError, OSError, http.client.HTTPException) as error:
        sys.exit(str(error))
    print(*answer["predictions"], sep="\n")


if __name__ == "__main__":
    main()
