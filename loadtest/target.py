"""Says where a load goes, and with which credentials."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadtest.wire import Tls


@dataclass(frozen=True)
class Target:
    """A model of a running server."""

    #: http://HOST:PORT or https://HOST:PORT.
    url: str
    #: HOST:PORT of gRPC.
    grpc: str
    model: str
    token: str = ""
    tls: Tls = field(default_factory=Tls)

    def tls_options(self) -> list[str]:
        """Returns the options of the locust file for HTTPS."""
        given = {"--ca": self.tls.ca, "--cert": self.tls.cert, "--key": self.tls.key}
        return [word for name, value in given.items() if value for word in (name, value)]
