"""Peers that the benchmarks measure the store against. Each gives the reason when it is unavailable."""

from __future__ import annotations

from storage.errors import EmberlineError


class PeerMissingError(EmberlineError):
    """A peer is not installed here, or does not run here; the message says why and what would help."""
