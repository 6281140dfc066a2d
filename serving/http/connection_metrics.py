"""Collects how many connections the ports have, and which clients neither send nor read what is due."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import Metric

from serving.http.prometheus import family, label_value

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


def connections(ports: Sequence[PortConnections]) -> Iterator[Metric]:
    """Yields the connections of each port. Labels: transport, and for single clients client."""
    each = [(port, {"transport": port.transport}) for port in ports]
    yield family("emberline_connections", "gauge", "Connections that are open", [(of, port.open) for port, of in each])
    meaning = "Most connections that may be open (--max-connections)"
    yield family("emberline_connections_limit", "gauge", meaning, [(of, port.limit) for port, of in each])
    meaning = "Connections whose client has sent a part of a request, or not read an answer, for five seconds"
    stuck = [(of, float(sum(port.stuck.values()))) for port, of in each]
    yield family("emberline_connections_stuck", "gauge", meaning, stuck)
    named = [
        ({**of, "client": label_value(client)}, float(count))
        for port, of in each
        for client, count in sorted(port.stuck.items(), key=lambda item: (-item[1], item[0]))[:MOST_CLIENTS]
    ]
    yield family("emberline_stuck_clients", "gauge", "The same by client, the eight of a port that have most", named)
