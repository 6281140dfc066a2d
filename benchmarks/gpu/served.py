"""Serves the model in this process: its sessions, 26 tables in DRAM, a queue, and callers that keep it busy.

Each use sets where its rows are: `hbm_share` 0, 1 or 0.1 of them are on the GPU.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.dlrm_towers import SPARSE
from benchmarks.gpu.bench import Bench
from serving.engine.model import LoadedModel
from serving.engine.requests import InferenceResult
from serving.model_config.pbtxt import read_model_config
from serving.pipeline.precision import dense_graph
from serving.pipeline.snapshot import Snapshot
from storage.checkpoint import DenseGraph
from storage.features import Column, column_from_numpy
from storage.hbm.gpus import gpus_of
from storage.hbm.replica import bytes_of
from storage.rows import RowCodec
from storage.specs import TableSpec
from storage.tiers.tiered import TieredStore

# Rows that are generated once and inserted again under other ids: no lookup can tell the difference.
_BLOCK = 1 << 15
# Share of the free memory, index and all.
_SHARE_OF_MEMORY = 0.5
_BESIDE_ROW = 32
_CALLS_UNDER_WAY = 2
_START_S = 120.0


def affordable_rows(row_bytes: int, wanted: int, host_bytes: int) -> int:
    """Returns the rows of each table: as wanted, or as many as fit into a part of the host's memory."""
    return min(wanted, int(host_bytes * _SHARE_OF_MEMORY / (SPARSE * (row_bytes + _BESIDE_ROW))))


def hbm_bytes(row_bytes: int, rows: int, share: float) -> int:
    """Returns the setting `hbm_bytes` for a share of the rows; 0 for none."""
    return bytes_of(row_bytes, max(1, int(rows * share))) if share else 0


class Served:
    """The model in one precision, with its sessions on the GPU. A context manager."""

    def __init__(
        self,
        bench: Bench,
        precision: str,
        max_batch: int,
        *,
        hbm_share: float,
        exact: bool = True,
        most_rows: int | None = None,
    ) -> None:
        """hbm_share: share of the rows in the GPU's memory. exact: one graph, for batches of max_batch; otherwise one
        for every power of two. most_rows: upper limit for a table.
        """
        sizes = bench.sizes
        self.bench, self.world = bench, bench.world
        self.row_bytes = TableSpec("t", sizes.dim, sizes.row_type).row_bytes
        wanted = min(sizes.table_rows, most_rows or sizes.table_rows)
        self.rows = affordable_rows(self.row_bytes, wanted, bench.host_bytes)
        specs = [TableSpec(f"t{index}", sizes.dim, sizes.row_type, self.rows) for index in range(SPARSE)]
        self._config = (precision, max_batch, exact)
        began = time.monotonic()
        folder = bench.run.work / f"store-{precision}-{max_batch}"
        self.store = TieredStore.open(folder, specs, dram_bytes=None)
        try:
            self._fill()
            self.fill_s = time.monotonic() - began
            self._open(hbm_share)
        except BaseException:
            self.store.close()
            raise

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the sessions and frees the memory; a session that does not end keeps the store."""
        if self.model.close(30.0):
            self.store.close()

    def place(self, hbm_share: float) -> None:
        """Puts another share of the tables' rows into the GPU's memory, with new sessions."""
        if not self.model.close(30.0):
            raise AssertionError("a session did not end")
        self._open(hbm_share)

    def asked(self) -> tuple[int, int]:
        """Returns the ids that were looked up on the GPU so far, and those of them that it did not have."""
        tables = [each for tier in gpus_of(self.store).tiers.values() for each in tier.stats().tables]
        return sum(each.lookups for each in tables), sum(each.misses for each in tables)

    def snapshot(self, graph: DenseGraph, number: int) -> Snapshot:
        """Returns a snapshot with the same rows and other weights."""
        first = self.first
        return Snapshot(
            f"{number:032x}", first.version, number, 0, graph, first.published_unix_ms + number, first.origin
        )

    def requests(self, count: int, batch: int) -> list[dict[str, Column]]:
        """Returns `count` requests whose ids all exist in the tables."""
        found = []
        for _ in range(count):
            columns = self.world.columns(batch)
            if self.rows < self.world.sizes.table_rows:
                ids = np.asarray(columns["ids"].values) % self.rows
                columns["ids"] = column_from_numpy("INT64", ids.reshape(batch, SPARSE))
            found.append(columns)
        return found

    def _fill(self) -> None:
        """Fills the tables straight in DRAM: loading from disk is measured elsewhere."""
        dim, codec = self.bench.sizes.dim, RowCodec(self.bench.sizes.row_type, self.bench.sizes.dim)
        rows = (np.random.default_rng(3).standard_normal((_BLOCK, dim)) * 0.1).astype(np.float32)
        encoded = codec.encode(rows)
        # Counts as training would have made them, unless an id stands for several ranks.
        codes = self.world.use_codes() if self.rows == self.bench.sizes.table_rows else None

        def fill(table: int) -> None:
            tier = self.store.dram[table]
            tier.reserve(self.rows)
            for start in range(0, self.rows, _BLOCK):
                ids = np.arange(start, min(start + _BLOCK, self.rows), dtype=np.int64)
                uses = None if codes is None else codes[self.world.ranks_of(ids, table)]
                tier.insert_or_assign(ids, encoded[: len(ids)], uses)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(fill, range(SPARSE)))

    def _open(self, hbm_share: float) -> None:
        published, folder, gpus = self.world.published, self.world.folder, self.bench.gpu.gpus
        size = hbm_bytes(self.row_bytes, SPARSE * self.rows, hbm_share)
        text = config_text(*self._config, gpu=self.bench.gpu.driver.info.index, hbm_bytes=size)
        (folder / "config.pbtxt").write_text(text, encoding="utf-8")
        config = read_model_config(folder).placed(gpus)
        self.graph = dense_graph(published, config.options)
        self.first = Snapshot.of_version(published, self.graph)
        self.model = LoadedModel(config, published, self.store, self.first, gpus=gpus)
        if not gpus_of(self.store).wait_filled(_START_S):
            raise AssertionError(f"the rows were not in the GPU's memory after {_START_S:.0f} s")


def config_text(precision: str, max_batch: int, exact: bool, *, gpu: int, hbm_bytes: int) -> str:
    """Returns the configuration that a user would write."""
    graph = f"graph_spec {{ batch_size: {max_batch} graph_lower_bound {{ batch_size: 1 }} }}" if exact else ""
    return (
        f"max_batch_size: {max_batch}\n"
        f"instance_group {{ kind: KIND_GPU count: 1 gpus: [ {gpu} ] }}\n"
        f"optimization {{ cuda {{ graphs: true {graph} }} }}\n"
        f'parameters {{ key: "precision" value {{ string_value: "{precision}" }} }}\n'
        f'parameters {{ key: "hbm_bytes" value {{ string_value: "{hbm_bytes}" }} }}\n'
    )


class Answered(list[tuple[float, float]]):
    """The times at which requests were answered, seconds of the clock, and how long each took, microseconds."""

    def within(self, start: float, end: float) -> np.ndarray:
        """Returns the microseconds of those that were answered in a window."""
        # Copied because the loop's thread goes on appending.
        return np.array([us for at, us in self[:] if start <= at < end])


class Callers:
    """Keeps requests always under way, from one event loop on a thread of its own. A context manager."""

    def __init__(
        self,
        model: LoadedModel,
        requests: Sequence[Mapping[str, Column]],
        under_way: int,
        hear: Callable[[Mapping[str, Column], InferenceResult], None] | None = None,
    ) -> None:
        """requests: sent in turn. hear: is given each request with its answer, on the loop's thread."""
        self.answered = Answered()
        self._model, self._requests, self._hear = model, requests, hear
        self._under_way = under_way
        self._next = 0
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="callers")

    def __enter__(self) -> Callers:
        self._thread.start()
        ends = time.monotonic() + _START_S
        while not self.answered and self._thread.is_alive() and time.monotonic() < ends:
            time.sleep(0.001)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._failures:
            raise self._failures[0]

    def window(self, seconds: float, least: int = 1) -> tuple[float, np.ndarray]:
        """Returns requests a second, and microseconds of each, over `seconds` and until there are `least`.

        Raises the exception of a request that failed.
        """
        start = time.perf_counter()
        time.sleep(seconds)
        while len(found := self.answered.within(start, end := time.perf_counter())) < least and self._thread.is_alive():
            time.sleep(0.005)
        if self._failures:
            raise self._failures[0]
        return len(found) / (end - start), found

    def _run(self) -> None:
        try:
            asyncio.run(self._everyone())
        except BaseException as error:
            self._failures.append(error)

    async def _everyone(self) -> None:
        await asyncio.gather(*(self._one() for _ in range(self._under_way)))

    async def _one(self) -> None:
        while not self._stop.is_set():
            columns = self._requests[self._next % len(self._requests)]
            self._next += 1
            began = time.perf_counter()
            result = await self._model.infer(columns, columns["ids"].rows)
            ended = time.perf_counter()
            self.answered.append((ended, (ended - began) * 1e6))
            if self._hear is not None:
                self._hear(columns, result)


def callers(served: Served, sessions: int, requests: Sequence[Mapping[str, Column]], **named: Any) -> Callers:
    """Returns enough callers that no session waits for a request."""
    return Callers(served.model, requests, _CALLS_UNDER_WAY * sessions, **named)
