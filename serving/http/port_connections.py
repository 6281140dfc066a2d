"""Describes the connections of the ports, and which clients neither send nor read what is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: The most clients that are named of one port, those with the most connections first.
MOST_CLIENTS = 8


@dataclass(frozen=True)
class PortConnections:
    """The connections of one port."""

    transport: str
    open: int
    limit: int
    #: Connections whose client is waited for too long, by its address.
    stuck: Mapping[str, int]


#: Returns the connections of each port that counts them.
ConnectionCounts = Callable[[], Sequence[PortConnections]]


def stuck_clients(ports: Sequence[PortConnections]) -> list[tuple[str, str, int]]:
    """Returns the transport, the client and the number of connections of those clients of each port that have most."""
    return [
        (port.transport, client, count)
        for port in ports
        for client, count in sorted(port.stuck.items(), key=lambda item: (-item[1], item[0]))[:MOST_CLIENTS]
    ]
