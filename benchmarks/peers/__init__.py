"""What the benchmarks measure the store beside. Each says why it cannot be had, where it cannot."""

from __future__ import annotations

from storage.errors import EmberlineError


class PeerMissingError(EmberlineError):
    """A peer is not installed here, or does not run here; the message says why and what would help."""
