"""Sends an open-loop load over many connections, from a process of its own: more than a server can answer.

python -m benchmarks.open_load PORT MODEL RATE SECONDS BODIES RESULT     # RATE 0: CALM connections in a closed loop
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paced_load import load_bodies

CONNECTIONS, CALM = 64, 4
# sent: when it was sent, in seconds from the start; latency in ms; HTTP status.
Record = np.dtype([("sent", "f8"), ("ms", "f8"), ("status", "i4")])


def run_load(port: int, model: str, rate: float, seconds: float, bodies: Path, result: Path) -> np.ndarray[Any, Any]:
    """Sends `rate` requests a second for `seconds`; returns their records.

    With rate 0 it sends as fast as CALM connections are answered.
    """
    words = [str(word) for word in (port, model, rate, seconds, bodies, result)]
    subprocess.run([sys.executable, "-m", "benchmarks.open_load", *words], check=True, timeout=seconds + 60)
    records: np.ndarray[Any, Any] = np.load(result)
    return records


class _Load:
    def __init__(self, port: int, model: str, bodies: Path) -> None:
        self.records: list[tuple[float, float, int]] = []
        self._port = port
        self._requests = [_request(model, body, header) for body, header in load_bodies(bodies)]
        self._began = time.monotonic()

    async def closed(self, seconds: float) -> None:
        await asyncio.gather(*(self._again(index, seconds) for index in range(CALM)))

    async def open(self, rate: float, seconds: float) -> None:
        """Sends at a fixed rate.

        A request that finds no free connection waits for one, and its latency counts from when it was due.
        """
        free: asyncio.Queue[Any] = asyncio.Queue()
        for _ in range(CONNECTIONS):
            free.put_nowait(await asyncio.open_connection("127.0.0.1", self._port))
        self._began = time.monotonic()
        tasks = set()
        for number in range(int(rate * seconds)):
            wait = self._began + number / rate - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            connection = await free.get()
            task = asyncio.create_task(self._one(number, connection, free))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    async def _again(self, index: int, seconds: float) -> None:
        connection = await asyncio.open_connection("127.0.0.1", self._port)
        number = index
        while time.monotonic() - self._began < seconds:
            connection = await self._ask(number, connection)
            number += CALM

    async def _one(self, number: int, connection: Any, free: asyncio.Queue[Any]) -> None:
        free.put_nowait(await self._ask(number, connection))

    async def _ask(self, number: int, connection: Any) -> Any:
        """Sends one request; returns the connection to use next."""
        reader, writer = connection
        sent = time.monotonic()
        writer.write(self._requests[number % len(self._requests)])
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.split(b"\r\ncontent-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(size)
        self.records.append((sent - self._began, (time.monotonic() - sent) * 1000, int(head.split(b" ", 2)[1])))
        if b"connection: close" in head:
            writer.close()
            return await asyncio.open_connection("127.0.0.1", self._port)
        return connection


def _request(model: str, body: bytes, header: int) -> bytes:
    lines = (
        f"POST /v2/models/{model}/infer HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Length: {len(body)}",
        f"Inference-Header-Content-Length: {header}",
        "Content-Type: application/octet-stream",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def main() -> None:
    """Runs the child process."""
    port, model, rate, seconds, bodies, result = sys.argv[1:]
    load = _Load(int(port), model, Path(bodies))
    asyncio.run(load.open(float(rate), float(seconds)) if float(rate) else load.closed(float(seconds)))
    np.save(result, np.array(load.records, Record))


if __name__ == "__main__":
    main()
