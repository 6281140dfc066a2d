"""Runs moto's S3 server with a counter before it, which tells kinds of requests apart and can add a latency to each.

The counter sees what a bill would show: every page of a listing, every try, requests that were refused.
"""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.object_server import BUCKET, object_server

_SERVER = """
import json, logging, threading, time
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

logging.getLogger("werkzeug").setLevel("ERROR")
totals, lock, latency_s = {}, threading.Lock(), [0.0]
moto = DomainDispatcherApplication(create_backend_app)

def kind(method, path, query):
    if "list-type=2" in query:
        return "LIST", "names"
    name = path.rpartition("/")[2]
    for part in ("replicas", "claims"):
        if f"/{part}/" in path:
            name = part
    known = ("head.json", "lease.json", "replicas", "claims", "manifest.json", "config.pbtxt", "models.json")
    return method, name if name in known else "files"

def application(environ, start_response):
    path, query = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
    if path.startswith("/-/"):
        with lock:
            if path == "/-/latency":
                latency_s[0] = float(query)
            body = json.dumps([[*key, *value] for key, value in sorted(totals.items())]).encode()
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]
    time.sleep(latency_s[0])
    method, name = kind(environ["REQUEST_METHOD"], path, query)

    def counted(status, headers, exc_info=None):
        size = next((int(value) for key, value in headers if key.lower() == "content-length"), 0)
        size = 0 if method == "HEAD" or status.startswith("304") else size
        with lock:
            count, total = totals.get((method, name, status[:3]), (0, 0))
            totals[method, name, status[:3]] = count + 1, total + size
        return start_response(status, headers, exc_info)

    return moto(environ, counted)

WSGIRequestHandler.protocol_version = "HTTP/1.1"
server = make_server("127.0.0.1", 0, application, threaded=True)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""


@dataclass(frozen=True)
class Asked:
    """Counts what a store was asked, by (method, kind of object, status): requests, and bytes of the answers."""

    requests: Counter[tuple[str, str, str]]
    answered: Counter[tuple[str, str, str]]

    def __sub__(self, before: Asked) -> Asked:
        return Asked(self.requests - before.requests, self.answered - before.answered)

    def count(self, *methods: str, name: str = "", status: str = "") -> int:
        """Returns the requests of some methods, of one kind of object and with one status where these are given."""
        return sum(
            count
            for (method, what, how), count in self.requests.items()
            if method in methods and name in ("", what) and status in ("", how)
        )

    @property
    def bytes(self) -> int:
        """Bytes of all bodies that were sent."""
        return self.answered.total()


class CountedStore:
    """An object store that runs in a process of its own."""

    def __init__(self, endpoint: str, url: str) -> None:
        self._endpoint = endpoint
        #: The URL of an empty repository.
        self.url = url

    def asked(self) -> Asked:
        """Returns what was asked so far."""
        return self._call("counts")

    def set_latency(self, seconds: float) -> None:
        """Lets every request wait so long before it is answered."""
        self._call(f"latency?{seconds}")

    def _call(self, path: str) -> Asked:
        with urllib.request.urlopen(f"{self._endpoint}/-/{path}") as answer:
            found = json.load(answer)
        requests: Counter[tuple[str, str, str]] = Counter()
        answered: Counter[tuple[str, str, str]] = Counter()
        for method, name, status, count, size in found:
            requests[method, name, status] = count
            answered[method, name, status] = size
        return Asked(requests, answered)


@contextmanager
def counted_store() -> Iterator[CountedStore]:
    """Runs an object store and points this process's clients at it while the context is open."""
    with object_server(_SERVER) as endpoint:
        yield CountedStore(endpoint, f"s3://{BUCKET}/models")
