"""Starts the engine and its front ends, restarts those that die, and stops them all in order.

It opens the ports itself, so that no connection is lost while a front end is exchanged: connections wait in the socket
that all front ends accept from. SIGTERM and SIGINT drain and stop; SIGHUP exchanges the front ends one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from serving.config import ServerConfig
from serving.frontends.arena import create_memory
from serving.frontends.child import CONFIG_ERROR, Orders
from serving.model_folders import folders, is_model
from serving.ports import listen
from serving.repository.first_load import say_hello
from serving.security.gate import Gate
from serving.security.own_token import own_token
from serving.security.tls import server_tls
from storage.errors import ConfigError

logger = logging.getLogger("emberline.serving")

# A process that ends within this time of its start is restarted after a delay, each time a longer one.
_SOON_S = 10.0
_FIRST_REST_S, _LONGEST_REST_S = 0.1, 5.0
# Seconds for a front end that replaces another.
_EXCHANGE_S = 60.0
# Seconds beside the drain timeout, for closing stores.
_MARGIN_S = 10.0


def supervise(config: ServerConfig) -> None:
    """Runs a server with front ends in processes of their own until SIGINT or SIGTERM.

    Raises ConfigError when a port is taken, Unsupported where the system has no memory to share. Exits with 1 when the
    engine refuses its configuration; it has said why.
    """
    _, fd = create_memory(1 << 12)
    os.close(fd)
    code = asyncio.run(_Supervisor(config).run())
    if code:
        logging.shutdown()
        sys.exit(code)


class _Slot:
    """Keeps one process running, with the processes that replace it. name: for the log."""

    def __init__(self, name: str, orders: Orders) -> None:
        self.name = name
        self.orders = orders
        self.process: asyncio.subprocess.Process | None = None
        self.ready = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.is_leaving = False


class _Supervisor:
    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._stopping = asyncio.Event()
        self._code = 0
        self._is_up = False
        self._slots: list[_Slot] = []
        self._count = 0
        self._exchange: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Runs until it is stopped and returns the exit status."""
        config = self._config
        loop = asyncio.get_running_loop()
        # Errors in these files are reported here and now, not by each process that would start again and again.
        Gate(config)
        server_tls(config)
        folder = Path(tempfile.mkdtemp(prefix="emberline-"))
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            http = stack.enter_context(listen(config.host, config.http_port, "http_port"))
            metrics = stack.enter_context(listen(config.host, config.metrics_port, "metrics_port"))
            grpc = stack.enter_context(_reserve(config.host, config.grpc_port))
            path = str(folder / "engine")
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            listener.bind(path)
            listener.listen(config.frontends * 4)
            lifeline, own_end = os.pipe()
            stack.callback(os.close, lifeline)
            stack.callback(os.close, own_end)
            base = Orders(
                "engine",
                config,
                logging.getLogger().getEffectiveLevel(),
                path,
                grpc.getsockname()[1],
                http.getsockname()[1],
                stack.enter_context(own_token(http.getsockname()[1])),
                lifeline=lifeline,
            )
            self._front = replace(base, role="frontend", http=http.fileno())
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._stop)
            loop.add_signal_handler(signal.SIGHUP, self._exchange_all)
            engine = self._start("engine", replace(base, listener=listener.fileno(), metrics=metrics.fileno()))
            fronts = [self._start_front() for _ in range(config.frontends)]
            ports = (http.getsockname()[1], grpc.getsockname()[1], metrics.getsockname()[1])
            hello = asyncio.create_task(self._say_hello((engine, *fronts), ports))
            await self._stopping.wait()
            hello.cancel()
            await self._end_all()
        return self._code

    async def _say_hello(self, slots: Sequence[_Slot], ports: tuple[int, int, int]) -> None:
        for slot in slots:
            await slot.ready.wait()
        self._is_up = True
        root = self._config.model_repository
        names = self._config.models or [name for name in folders(root) if is_model(root / name)]
        say_hello(self._config, names, *ports)
        logger.info("%d front end(s) before one engine", self._config.frontends)

    def _start_front(self) -> _Slot:
        self._count += 1
        return self._start(f"front end {self._count}", self._front)

    def _start(self, name: str, orders: Orders) -> _Slot:
        slot = _Slot(name, orders)
        self._slots.append(slot)
        slot.task = asyncio.create_task(self._keep(slot))
        return slot

    async def _keep(self, slot: _Slot) -> None:
        """Runs a process, and another one whenever it has ended, until the slot is closed."""
        rest_s = _FIRST_REST_S
        while not (self._stopping.is_set() or slot.is_leaving):
            started = time.monotonic()
            code = await self._run_once(slot)
            if self._stopping.is_set() or slot.is_leaving:
                return
            if code == CONFIG_ERROR and not self._is_up:
                self._code = 1
                self._stopping.set()
                return
            how = f"signal {-code}" if code < 0 else f"status {code}"
            logger.error("%s ended with %s; it is started again", slot.name, how)
            if time.monotonic() - started > _SOON_S:
                rest_s = _FIRST_REST_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), rest_s)
            rest_s = min(2 * rest_s, _LONGEST_REST_S)

    async def _run_once(self, slot: _Slot) -> int:
        ready, own_end = os.pipe()
        orders = replace(slot.orders, ready=own_end)
        try:
            slot.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "serving.frontends", orders.encode(), pass_fds=orders.descriptors
            )
        finally:
            os.close(own_end)
        if self._stopping.is_set() or slot.is_leaving:
            _signal(slot, signal.SIGTERM)  # it was not there yet when the others were signalled
        loop = asyncio.get_running_loop()

        def is_ready() -> None:
            loop.remove_reader(ready)
            if os.read(ready, 1):
                slot.ready.set()
            os.close(ready)

        loop.add_reader(ready, is_ready)
        return await slot.process.wait()

    def _stop(self) -> None:
        if self._stopping.is_set():
            for slot in self._slots:
                _signal(slot, signal.SIGKILL)
            os._exit(1)
        logger.info("stopping: in-flight requests have %g s", self._config.drain_timeout_s)
        self._stopping.set()

    async def _end_all(self) -> None:
        """Stops all processes. The engine is not ready from now on, but answers until its front ends have drained."""
        for slot in self._slots:
            _signal(slot, signal.SIGTERM)
        tasks = [slot.task for slot in self._slots if slot.task is not None]
        _, left = await asyncio.wait(tasks, timeout=self._config.drain_timeout_s + _MARGIN_S)
        for slot in self._slots:
            if slot.task in left:
                logger.warning("%s did not stop in time and is killed", slot.name)
                _signal(slot, signal.SIGKILL)
        if left:
            await asyncio.wait(left)

    def _exchange_all(self) -> None:
        if self._exchange is None or self._exchange.done():
            self._exchange = asyncio.create_task(self._exchange_fronts())

    async def _exchange_fronts(self) -> None:
        """Replaces the front ends one after the other; an old one leaves when the new one is at work."""
        for old in [slot for slot in self._slots if slot.orders.role == "frontend"]:
            new = self._start_front()
            try:
                await asyncio.wait_for(new.ready.wait(), _EXCHANGE_S)
            except TimeoutError:
                logger.error("%s was not ready in %g s; %s stays", new.name, _EXCHANGE_S, old.name)
                await self._leave(new)
                return
            logger.info("%s takes the place of %s", new.name, old.name)
            await self._leave(old)

    async def _leave(self, slot: _Slot) -> None:
        slot.is_leaving = True
        _signal(slot, signal.SIGTERM)
        if slot.task is not None:
            await slot.task
        self._slots.remove(slot)


def _signal(slot: _Slot, number: signal.Signals) -> None:
    if slot.process is not None and slot.process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            slot.process.send_signal(number)


def _reserve(host: str, port: int) -> socket.socket:
    """Reserves a port that the front ends' gRPC servers share, and no other process gets. Raises ConfigError."""
    with listen(host, port, "grpc_port") as probe:
        chosen = probe.getsockname()[1]
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((host, chosen))
    except OSError as error:
        reserved.close()
        raise ConfigError(f"grpc_port: cannot share {host}:{chosen}: {error.strerror}", field="grpc_port") from None
    return reserved
