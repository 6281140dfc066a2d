"""Common parts of a server's child processes: how they get their orders, and when they have to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from dataclasses import dataclass

from pydantic import TypeAdapter

from serving.config import ServerConfig

CONFIG_ERROR = 2


@dataclass(frozen=True)
class Orders:
    """Orders that a process is started with. Descriptors are inherited.

    They can be read in the list of processes: the token is not in them.
    """

    role: str
    config: ServerConfig
    log_level: int
    #: The engine's socket.
    engine_path: str
    grpc_port: int
    http_port: int
    #: Digest of the server's own token.
    own_digest: str = ""
    #: Descriptor of the engine's listening socket, for the engine.
    listener: int = -1
    #: Descriptor of the listening HTTP socket.
    http: int = -1
    #: Descriptor of the listening metrics socket.
    metrics: int = -1
    #: A pipe that ends with the supervisor.
    lifeline: int = -1
    #: A pipe for a byte once the process is at work.
    ready: int = -1

    def encode(self) -> str:
        """Encodes the orders as one argument of a command."""
        return _ORDERS.dump_json(self).decode()

    @classmethod
    def decode(cls, text: str) -> Orders:
        """Decodes the text that `encode` returned."""
        return _ORDERS.validate_json(text)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors that have to be inherited."""
        return tuple(fd for fd in (self.listener, self.http, self.metrics, self.lifeline, self.ready) if fd >= 0)


_ORDERS = TypeAdapter(Orders)


def set_up_process(orders: Orders) -> None:
    """Sets up logging as the supervisor's, and ignores Ctrl-C: the supervisor stops all processes in their order."""
    logging.basicConfig(level=orders.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def stop_event(orders: Orders) -> asyncio.Event:
    """Returns an event that SIGTERM or the end of the supervisor sets. On the running loop."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)

    def ended() -> None:
        loop.remove_reader(orders.lifeline)
        stopping.set()

    loop.add_reader(orders.lifeline, ended)
    return stopping


def say_ready(orders: Orders) -> None:
    """Notifies the supervisor that this process is at work."""
    with contextlib.suppress(OSError):
        os.write(orders.ready, b"1")
    os.close(orders.ready)
