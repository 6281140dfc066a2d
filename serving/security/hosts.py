"""Says by which host names browsers may call a server.

Whoever owns a domain can let its name point at this machine (DNS rebinding). A browser then takes a page of that name
and this server for one origin, so neither the origin nor the port of a request shows that the page is a stranger's; the
header Host does. Addresses cannot be anybody's name, and the names below cannot be registered.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

# Kept for machines and networks: RFC 6761, 6762 and 8375, and by decision of ICANN; a service within a cluster.
_RESERVED = (".localhost", ".local", ".internal", ".home.arpa", ".svc")
_PORT = re.compile(r":\d*$")


class KnownHosts:
    """The names of a server."""

    def __init__(self, names: Iterable[str]) -> None:
        """names: further ones, in any case of letters."""
        self._names = {socket.gethostname().lower(), *(name.lower() for name in names)}

    def knows(self, host: str) -> bool:
        """Returns whether a header Host names this server, whoever says so; "" where there is none."""
        name = _PORT.sub("", host.strip().lower())
        bare = name.removeprefix("[").removesuffix("]").removesuffix(".")
        try:
            ipaddress.ip_address(bare)
        except ValueError:
            return "." not in bare or bare.endswith(_RESERVED) or bare in self._names
        return True
