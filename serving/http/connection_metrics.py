"""Collects how many connections the ports have, and which clients neither send nor read what is due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import Metric

from serving.http.port_connections import PortConnections, stuck_clients
from serving.http.prometheus import family, label_value


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
        ({"transport": transport, "client": label_value(client)}, float(count))
        for transport, client, count in stuck_clients(ports)
    ]
    yield family("emberline_stuck_clients", "gauge", "The same by client, the eight of a port that have most", named)
