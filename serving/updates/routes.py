"""Describes which versions answer the requests of a model, and which wait to be allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.engine.model import LoadedModel


@dataclass(frozen=True)
class Routes:
    """The versions that requests are answered by."""

    served: LoadedModel | None = None
    by_version: Mapping[str, LoadedModel] = field(default_factory=dict)
    #: A version that answers this fraction of the requests from its own sessions.
    canary: tuple[LoadedModel, float] | None = None


@dataclass(frozen=True)
class Awaiting:
    """A version that waits for `allow`."""

    #: Digest of its manifest; another version of its number does not wait.
    key: str
    reason: str
