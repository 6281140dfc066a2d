"""A model that is trained on a stream of clicks, and the producers that write them at a steady rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from trainer import train

NAME = "stream"
CONFIG = f"""
model_name: {NAME}
label: clicked
inputs:
  - {{name: user, dtype: INT64}}
  - {{name: item, dtype: INT64}}
  - {{name: shop, dtype: INT64}}
  - {{name: price, dtype: FP32}}
features:
  - {{name: user, inputs: [user], output: ids, table: users}}
  - {{name: item, inputs: [item], output: ids, table: items}}
  - {{name: shop, inputs: [shop], output: ids, table: shops}}
  - {{name: price, inputs: [price], transforms: [{{op: log}}], output: dense}}
tables:
  - {{name: users, dim: 16}}
  - {{name: items, dim: 16}}
  - {{name: shops, dim: 16}}
model: {{type: deepfm, hidden: [64, 32]}}
training: {{batch_size: 512, seed: 1, time_column: at}}
"""
USERS, ITEMS, SHOPS = 100_000, 20_000, 500
# Seconds between two sends; each has the rows that are due.
_EVERY_S = 0.02
#: Takes a table of rows, and returns when the broker has it.
Send = Callable[[Any], None]


def click_table(rng: np.random.Generator, rows: int, seconds: float) -> Any:
    """Makes clicks of one moment, as a pyarrow Table (rows,)."""
    item = (ITEMS * rng.random(rows) ** 3).astype(np.int64)
    return pa.table(
        {
            "user": rng.integers(0, USERS, rows),
            "item": item,
            "shop": item % SHOPS,
            "price": (1 + rng.random(rows) * 99).astype(np.float32),
            "clicked": rng.random(rows) < 0.1 + 0.3 * (item % 7 == 0),
            "at": np.full(rows, seconds),
        }
    )


def train_history(folder: Path, rows: int) -> tuple[Path, Path]:
    """Trains on rows of an hour ago and publishes them; returns the run and the repository."""
    run, repository = folder / "run", folder / "models"
    config = folder / "stream.yaml"
    config.write_text(CONFIG)
    history = click_table(np.random.default_rng(1), rows, time.time() - 3600)
    train(config, history, output=run, repository=repository, progress=False)
    return run, repository


def as_bytes(table: Any) -> bytes:
    """Returns rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


class Producer:
    """Writes clicks at a rate until it is stopped, and rows that were asked for among them. Use it as a context."""

    def __init__(self, send: Send, rows_per_second: int) -> None:
        self._send = send
        self._rate = rows_per_second
        self._wanted: list[int] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer")
        #: Rows so far, and the largest delay of a send behind its time, in seconds.
        self.rows, self.late_s = 0, 0.0
        #: When the click of each user that was asked for was written, by time.time().
        self.written: dict[int, float] = {}
        self.failure: BaseException | None = None

    def click(self, user: int) -> None:
        """Has the next rows include a click of this user."""
        with self._lock:
            self._wanted.append(user)

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self._produce()
        except BaseException as error:
            self.failure = error

    def _produce(self) -> None:
        rng, began = np.random.default_rng(2), time.monotonic()
        for turn in range(1, 1 << 40):
            if self._stopped.wait(max(0.0, began + turn * _EVERY_S - time.monotonic())):
                return
            self.late_s = max(self.late_s, time.monotonic() - began - turn * _EVERY_S)
            with self._lock:
                asked, self._wanted = self._wanted, []
            now = time.time()
            table = click_table(rng, round(turn * _EVERY_S * self._rate) - self.rows, now)
            table = with_users(table, asked)
            for user in asked:
                self.written[user] = now
            self._send(table)
            self.rows += table.num_rows


def with_users(table: Any, users: Sequence[int]) -> Any:
    """Returns the rows with other users in the first of them, who clicked."""
    count = min(len(users), table.num_rows)
    columns = {name: table.column(name).to_numpy(zero_copy_only=False).copy() for name in ("user", "clicked")}
    columns["user"][:count], columns["clicked"][:count] = users[:count], True
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
    return table
