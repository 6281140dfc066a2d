"""Asks other replicas over HTTP whether they answer requests and what they serve, and wakes them."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
import urllib.parse
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, TypeVar

from storage.objects.fleet import Replica

#: Whether a replica takes requests; "gone" where its address refuses connections.
Health = Literal["ready", "unready", "gone", "unknown"]

_T = TypeVar("_T")
_TIMEOUT_S = 2.0
_AGAIN_S = 1.0
_THREADS = 8


class Peers:
    """Collects the health of other replicas. One thread at a time asks; answers come on others."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="emberline-peers")
        self._asked: dict[str, tuple[float, Future[Health]]] = {}
        self._known: dict[str, Health] = {}
        # Replicas, by when they wrote their object, that had ended by then.
        self._gone: set[tuple[str, int]] = set()

    def close(self) -> None:
        """Ends the threads; requests that are under way are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def known(self, replicas: Iterable[Replica]) -> dict[str, Health]:
        """Returns those of the replicas that are gone, without asking: they have written nothing since."""
        return {each.id: "gone" for each in replicas if (each.url, each.unix_ms) in self._gone}

    def health(self, replicas: Iterable[Replica]) -> dict[str, Health]:
        """Returns what is known by now, by id, and asks again where that is older than a second. Never waits."""
        now = time.monotonic()
        found: dict[str, Health] = {}
        for replica in replicas:
            asked = self._asked.get(replica.url)
            if asked is not None and asked[1].done():
                self._known[replica.url] = asked[1].result()
            if replica.url and (asked is None or (asked[1].done() and now - asked[0] > _AGAIN_S)):
                self._asked[replica.url] = (now, self._pool.submit(ask, replica.url))
            found[replica.id] = self._known.get(replica.url, "unknown")
            if found[replica.id] == "gone":
                self._gone.add((replica.url, replica.unix_ms))
        return found

    def wait(self, replicas: Iterable[Replica], timeout_s: float = 2 * _TIMEOUT_S) -> dict[str, Health]:
        """Returns the health of replicas, by id, asked now."""
        futures = {each.id: self._pool.submit(ask, each.url) for each in replicas if each.url}
        known = _within(timeout_s, futures)
        return {name: known.get(name, "unknown") for name in futures}

    def serve(self, model: str, replicas: Iterable[Replica], timeout_s: float = 2 * _TIMEOUT_S) -> dict[str, str]:
        """Returns the snapshots that replicas serve, by id, asked now. Those that do not say it lack."""
        futures = {
            each.id: self._pool.submit(_told, each, model, looks=False) for each in replicas if each.url and each.wake
        }
        return {name: served for name, served in _within(timeout_s, futures).items() if served}

    def wake(self, model: str, replicas: Iterable[Replica]) -> None:
        """Makes replicas look at the object store now, without waiting for it."""
        for replica in replicas:
            if replica.url and replica.wake:
                self._pool.submit(_told, replica, model, looks=True)


def _within(timeout_s: float, futures: Mapping[str, Future[_T]]) -> dict[str, _T]:
    """Returns the results that come within a time; what has not begun by then is not asked any more."""
    deadline = time.monotonic() + timeout_s
    found: dict[str, _T] = {}
    for name, future in futures.items():
        with contextlib.suppress(TimeoutError):
            found[name] = future.result(max(0.0, deadline - time.monotonic()))
    for future in futures.values():
        future.cancel()
    return found


def ask(url: str) -> Health:
    """Returns the health of the server at a URL. A certificate is not checked: it is sent no secret."""
    try:
        status, _ = _request(url, "GET", "/v2/health/ready")
    except ConnectionRefusedError:
        return "gone"
    except ssl.SSLError:
        return "unknown"  # it is there, and asks for a certificate
    except (OSError, http.client.HTTPException, ValueError):
        return "unready"
    return "ready" if status == 200 else "unready"


def _told(replica: Replica, model: str, *, looks: bool) -> str:
    """Returns the snapshot that a replica serves; "" where it does not say. looks: whether to make it look, too."""
    try:
        path = f"/v2/repository/models/{urllib.parse.quote(model, safe='')}/look"
        status, answer = _request(replica.url, "POST", path, json.dumps({"wake": replica.wake, "looks": looks}))
        if status == 400:  # a replica of an earlier release, which always looks
            status, answer = _request(replica.url, "POST", path, json.dumps({"wake": replica.wake}))
        served = json.loads(answer)["served"] if status == 200 and answer else ""
        return served if isinstance(served, str) else ""
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return ""  # it looks by itself, a little later


def _request(url: str, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    """Returns the status of an answer, and the first 64 KiB of its body."""
    parts = urllib.parse.urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read(1 << 16)
    finally:
        connection.close()
