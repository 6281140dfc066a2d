"""Decides which requests go to a canary: a key goes to the same side in every process and after every restart."""

from __future__ import annotations

from serving._front import routing_point as _native_point


def routing_point(model: str, routing_key: str) -> float:
    """Maps a routing key to a number in [0, 1); below the canary's fraction, the canary answers. "" is drawn at random.

    The number depends on the model's name and the key alone, so a fraction that grows keeps the keys that it had.
    It is a BLAKE2b digest, and native code makes it for the requests that it reads itself, too.
    """
    return _native_point(model.encode(), routing_key.encode("utf-8", "surrogatepass"))
