"""Requests that are encoded before the first one is sent, in memory or in a folder that several processes read.

Requests may be divided into stretches of time: what is sent in the first ten seconds, in the next ten, and so on. That
is how ids drift over the time of a test.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtest.bodies import binary_body, grpc_request, json_body
from loadtest.rows import Tensor

#: The name of each kind of request, and how one is encoded: its bytes and the length of its JSON part.
ENCODERS: dict[str, Callable[[str, Sequence[Tensor]], tuple[bytes, int]]] = {
    "http_binary": lambda model, tensors: binary_body(tensors),
    "http_json": lambda model, tensors: (json_body(tensors), 0),
    "grpc": lambda model, tensors: (grpc_request(model, tensors).SerializeToString(), 0),
}
#: Bytes of prepared requests of one kind at most.
MOST_BYTES = 512 << 20


@dataclass(frozen=True)
class Prepared:
    """Encoded requests. bodies: bytes, one request after the other."""

    bodies: bytes | mmap.mmap
    #: Where each request begins, and at the end where the last one ends: (n + 1,).
    offsets: Sequence[int]
    #: Length of the JSON part of each binary request.
    headers: Sequence[int]
    #: The first request of each stretch of time, and the number of requests at the end.
    starts: Sequence[int]
    #: Seconds of a stretch; after the last one the first one begins again.
    stretch_s: float = 0.0

    @property
    def count(self) -> int:
        """The number of different requests."""
        return len(self.headers)

    def pick(self, number: int, seconds: float) -> int:
        """Returns which request is the `number`th that is sent, `seconds` after the begin of the test."""
        stretch = int(seconds / self.stretch_s) % (len(self.starts) - 1) if self.stretch_s else 0
        first, end = self.starts[stretch], self.starts[stretch + 1]
        return first + number % (end - first)

    def body(self, place: int) -> bytes:
        """Returns a request's bytes."""
        return self.bodies[self.offsets[place] : self.offsets[place + 1]]

    def save(self, folder: Path) -> None:
        """Writes the requests into a new folder."""
        folder.mkdir()
        (folder / "bodies").write_bytes(self.bodies)
        np.save(folder / "offsets.npy", np.array(self.offsets, np.int64))
        np.save(folder / "headers.npy", np.array(self.headers, np.int64))
        (folder / "stretches.json").write_text(json.dumps({"starts": list(self.starts), "stretch_s": self.stretch_s}))

    @classmethod
    def load(cls, folder: Path) -> Prepared:
        """Returns the requests of a folder; the bodies stay in the file system's cache, shared by all processes."""
        with (folder / "bodies").open("rb") as file:
            bodies = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        offsets, headers = (np.load(folder / f"{name}.npy").tolist() for name in ("offsets", "headers"))
        stretches = json.loads((folder / "stretches.json").read_text())
        return cls(bodies, offsets, headers, stretches["starts"], stretches["stretch_s"])


def encode(
    kind: str, model: str, stretches: Iterable[Iterable[Sequence[Tensor]]], *, stretch_s: float = 0.0
) -> Prepared:
    """Encodes requests for the wire, by stretches of time. kind: a key of ENCODERS.

    Raises ValueError when they take more than MOST_BYTES.
    """
    encoder = ENCODERS[kind]
    parts, offsets, headers, starts = [], [0], [], [0]
    for requests in stretches:
        for tensors in requests:
            body, header = encoder(model, tensors)
            parts.append(body)
            headers.append(header)
            offsets.append(offsets[-1] + len(body))
            if offsets[-1] > MOST_BYTES:
                raise ValueError(
                    f"{len(parts):,} requests take {offsets[-1] / 2**20:,.0f} MiB; expected at most "
                    f"{MOST_BYTES / 2**20:,.0f} MiB of different requests"
                )
        starts.append(len(headers))
    return Prepared(b"".join(parts), offsets, headers, starts, stretch_s)
