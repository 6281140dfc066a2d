"""Limits the rate of each client: a token bucket each, in bounded memory."""

from __future__ import annotations

import ipaddress
import math
import time

from serving._front import Rates as NativeRates
from serving.errors import RateLimited

_MAX_CLIENTS = 65_536


class Rates:
    """The buckets of one process, which native code counts in, too. Thread-safe.

    A client may send a second's worth of requests at once, then at its rate.
    """

    def __init__(self, max_clients: int = _MAX_CLIENTS) -> None:
        """Starts without clients. max_clients: past it the least recent client is forgotten."""
        self.native = NativeRates(max_clients)

    def take(self, client: str, rate: float) -> None:
        """Counts one request. rate: requests a second. Raises RateLimited."""
        left_s = self.native.take(client, rate, time.monotonic())
        if left_s > 0.0:
            wait_s = max(1, math.ceil(left_s))
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
