"""Runs a server in the foreground of this process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from serving.config import ServerConfig
from serving.event_loop import run_on_loop
from serving.gpu.gpus import find_gpus
from serving.hang_up import ignore_strange_hang_up
from serving.interpreter import freeze_heap, share_gil, thaw_heap
from serving.ports import Ports
from serving.repository.starts import process_began
from serving.server import Server

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(config: ServerConfig) -> None:
    """Runs a server in this process until SIGINT or SIGTERM, then drains. A second signal ends it at once.

    SIGHUP stops it too, where a terminal controls the process.
    Raises NotFound when the repository is not there, ConfigError when a port is taken.
    """
    ignore_strange_hang_up()
    signals = 0

    def stop(server: Server) -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            os._exit(1)
        server.request_stop()

    _run(Server(config, on_loaded=freeze_heap, gpus=find_gpus(), began=process_began()), stop, lambda: None)


def serve_for_supervisor(config: ServerConfig, ports: Ports, restarts: int, listening: Callable[[], None]) -> None:
    """Runs a server in a process of its own, which another one ends if it does not drain.

    ports: the supervisor's. listening: called when they answer.
    """
    # Of the first process, the imports of the supervisor are a part of its start.
    began = process_began("self" if restarts else str(os.getppid()))
    server = Server(config, on_loaded=freeze_heap, gpus=find_gpus(), ports=ports, restarts=restarts, began=began)
    _run(server, Server.request_stop, listening)


def stop_signals() -> set[signal.Signals]:
    """Returns the signals that stop a server: those that were not ignored when it started (nohup, no terminal)."""
    return {number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN}


def _run(server: Server, stop: Callable[[Server], None], listening: Callable[[], None]) -> None:
    share_gil()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        numbers = stop_signals()
        for number in numbers:
            loop.add_signal_handler(number, stop, server)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # those that came before they had a handler
        await server.run(listening)

    try:
        run_on_loop(run())
    finally:
        thaw_heap()
    if server.is_loading():
        # A load cannot be interrupted; its store recovers as it does from any crash.
        logging.shutdown()
        os._exit(0)
