"""Decides which requests go to a canary: a key goes to the same side in every process and after every restart."""

from __future__ import annotations

import hashlib
import random


def routing_point(model: str, routing_key: str) -> float:
    """Maps a routing key to a number in [0, 1); below the canary's fraction, the canary answers. "" is drawn at random.

    The number depends on the model's name and the key alone, so a fraction that grows keeps the keys that it had.
    """
    if not routing_key:
        return random.random()
    digest = hashlib.blake2b(
        routing_key.encode("utf-8", "surrogatepass"), digest_size=8, key=model.encode()[:64]
    ).digest()
    return int.from_bytes(digest, "big") / 2**64
