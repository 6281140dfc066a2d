"""Defines what programs that others wrote have in common: where they send, what they get, and what is read of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote, urlsplit

from loadtest.channel import INFER
from loadtest.prepared import Prepared
from loadtest.records import PhaseRecord
from loadtest.target import Target

_CONTENT_TYPES = {
    "http_binary": "application/octet-stream",
    "http_json": "application/json",
    "grpc": "application/grpc",
}


@dataclass(frozen=True)
class Load:
    """Says what a program is to send."""

    kind: str
    target: Target
    prepared: Prepared
    #: An empty folder for its files.
    folder: Path
    connections: int
    threads: int

    @property
    def path(self) -> str:
        """The path that requests are sent to."""
        return INFER if self.kind == "grpc" else f"/v2/models/{quote(self.target.model, safe='')}/infer"

    @property
    def address(self) -> str:
        """The scheme, host and port."""
        scheme = urlsplit(self.target.url).scheme
        return f"{scheme}://{self.target.grpc}" if self.kind == "grpc" else self.target.url.rstrip("/")

    def headers(self, json_bytes: int) -> dict[str, str]:
        """Returns the headers of a request. json_bytes: of its JSON part where binary tensors follow, else 0."""
        headers = {"Content-Type": _CONTENT_TYPES[self.kind]}
        if json_bytes:
            headers["Inference-Header-Content-Length"] = str(json_bytes)
        if self.kind == "grpc":
            headers["te"] = "trailers"  # codespell:ignore te
        if self.target.token:
            headers["Authorization"] = f"Bearer {self.target.token}"
        return headers


class Program(ABC):
    """A program that sends a constant rate. Making one writes the files that it needs."""

    #: What is to be installed where the program is not there.
    package: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]] = tuple(_CONTENT_TYPES)
    #: Seconds that a phase has to last at least.
    least_s: ClassVar[float] = 1.0
    #: What a reader has to know of its figures.
    note: ClassVar[str]

    @abstractmethod
    def __init__(self, load: Load) -> None:
        """Raises ConfigError for what it cannot send, and Unavailable when the server does not answer."""

    @abstractmethod
    def command(self, rate: float, seconds: int) -> list[str]:
        """Returns the command line."""

    @abstractmethod
    def read(self, record: PhaseRecord, printed: str) -> None:
        """Adds the figures of a run that has ended well. Raises Unavailable for what is not understood."""
