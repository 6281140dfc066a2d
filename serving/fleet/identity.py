"""Names a replica, and says how this machine is reached."""

from __future__ import annotations

import logging
import re
import socket
from dataclasses import dataclass

from serving.config import ServerConfig
from serving.fleet.peers import Peers
from storage.objects.fleet import FleetObjects

logger = logging.getLogger("emberline.serving")

_ANY = ("0.0.0.0", "::", "")


@dataclass(frozen=True)
class Identity:
    """Says who a replica is, and how many of its kind may be left behind."""

    id: str
    #: Where it answers health checks.
    url: str
    max_unavailable: int


def identity_of(config: ServerConfig, http_port: int) -> Identity:
    """Returns the identity of a server that answers at a port."""
    scheme = "http" if config.tls_certificate is None else "https"
    host = _own_address() if config.host in _ANY else config.host
    url = config.replica_url or f"{scheme}://{f'[{host}]' if ':' in host else host}:{http_port}"
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname()).strip("-.") or "replica"
    return Identity(config.replica_id or f"{name[:100]}-{http_port}", url, config.max_unavailable)


def warn_of_namesake(model: str, who: Identity, objects: FleetObjects, peers: Peers) -> None:
    """Logs an error where another server that answers requests has the name of this one. Raises ObjectStoreError."""
    there = objects.replica(who.id)
    if there is not None and there.url != who.url and peers.wait([there]).get(who.id) == "ready":
        logger.error(
            "%s: the server at %s is the replica %s too, so the others know of one of them only; give each its own "
            "--replica-id",
            model,
            there.url,
            who.id,
        )


def _own_address() -> str:
    """Returns the address of this machine that others reach it by, as far as it is known. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
