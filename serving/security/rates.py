"""Limits the rate of each client: a token bucket each, in bounded memory."""

from __future__ import annotations

import ipaddress
import math
import time

from serving.errors import RateLimited

_MAX_CLIENTS = 65_536


class Rates:
    """The buckets of one process. Not thread-safe: one event loop uses it.

    A client may send a second's worth of requests at once, then at its rate.
    """

    def __init__(self, max_clients: int = _MAX_CLIENTS) -> None:
        """Starts without clients. max_clients: past it the least recent client is forgotten."""
        self._max_clients = max_clients
        # Remaining requests of each client, and the time of that count; the most recent client is last.
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, client: str, rate: float) -> None:
        """Counts one request. rate: requests a second. Raises RateLimited."""
        now = time.monotonic()
        burst = max(1.0, rate)
        left, at = self._left.pop(client, (burst, now))
        left = min(burst, left + (now - at) * rate)
        is_granted = left >= 1.0
        self._left[client] = (left - 1.0 if is_granted else left), now
        if len(self._left) > self._max_clients:
            del self._left[next(iter(self._left))]
        if not is_granted:
            wait_s = max(1, math.ceil((1.0 - left) / rate))
            raise RateLimited(f"over {rate:g} requests a second; try again in {wait_s} s", retry_after_s=wait_s)


def client_of(address: str) -> str:
    """Returns the key of one client: an address; of IPv6 the network that one household or machine is given."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))
