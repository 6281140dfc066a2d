"""What the processes of a server have in common: how they are told what to be, and when they have to stop."""

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
    """What a process is started with. Descriptors are inherited.

    engine_path: the engine's socket. listener: it, as a descriptor, for the engine. http, metrics: listening sockets.
    lifeline: a pipe that ends with the supervisor. ready: a pipe for a byte once the process is at work.
    own_digest: of the server's own token. Orders can be read in the list of processes: the token is not for them.
    """

    role: str
    config: ServerConfig
    log_level: int
    engine_path: str
    grpc_port: int
    http_port: int
    own_digest: str = ""
    listener: int = -1
    http: int = -1
    metrics: int = -1
    lifeline: int = -1
    ready: int = -1

    def encode(self) -> str:
        """As one argument of a command."""
        return _ORDERS.dump_json(self).decode()

    @classmethod
    def decode(cls, text: str) -> Orders:
        """What `encode` gave."""
        return _ORDERS.validate_json(text)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What has to be inherited."""
        return tuple(fd for fd in (self.listener, self.http, self.metrics, self.lifeline, self.ready) if fd >= 0)


_ORDERS = TypeAdapter(Orders)


def set_up_process(orders: Orders) -> None:
    """Logging as the supervisor's; Ctrl-C is the supervisor's alone, who stops all in their order."""
    logging.basicConfig(level=orders.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def stop_event(orders: Orders) -> asyncio.Event:
    """Set by SIGTERM, or when the supervisor has gone. On the running loop."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)

    def ended() -> None:
        loop.remove_reader(orders.lifeline)
        stopping.set()

    loop.add_reader(orders.lifeline, ended)
    return stopping


def say_ready(orders: Orders) -> None:
    """Tells the supervisor that this process is at work."""
    with contextlib.suppress(OSError):
        os.write(orders.ready, b"1")
    os.close(orders.ready)
