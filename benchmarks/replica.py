"""Claims: a new replica that knows the hot ids of another one has its hit rate at once, and is ready nearly as soon.

A version lies in moto's S3 server, and a first replica has answered requests by Zipf's law until its cache knows them.
Half of the ids are asked for as often as in the training, the others have changed places, so that the published use
counts are half of the truth. Then new replicas are started as a user starts them, each on a machine of its own (empty
folders): without hot ids, with those of the first one, and with those and `ready_when: 0.8`. The time until they are
ready runs from the start of the process. Each answers the same 1,000 requests from its first moment on.

    python -m benchmarks.replica            # about six minutes
    python -m benchmarks.replica --quick
"""

from __future__ import annotations

import http.client
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.mirror import object_store
from benchmarks.starts_world import DIM, NAME, publish
from benchmarks.traffic import Array, expected_codes
from loadtest.bodies import binary_body
from loadtest.popularity import zipf
from loadtest.rows import Tensor
from serving import Server, ServerConfig
from serving.repository import shared_hot_ids
from storage.errors import NotFound
from storage.objects import ObjectStore
from storage.objects.published import CONFIG, PublishedModel
from storage.tiers.hot_ids import HOT_IDS
from storage.tiers.slabs import slab_bytes
from tests.support.server_process import ServerProcess

ROWS, QUICK_ROWS = 2_000_000, 100_000
#: Requests that a replica is judged by, and the ids of each.
REQUESTS, IDS = 1000, 256
#: Share of the rows that fit into DRAM, and lookups for each of them until the first replica's cache is judged warm.
SHARE, LOOKUPS_PER_ROW = 0.1, 100
RATE = 0.8
BETTER, NO_LATER, RIGHT = 1.1, 0.75, 0.95
_WARM_IDS = 1024
_KINDS = ("without", "hot ids", f"hot ids, ready_when {RATE}")
_WAIT_S = 60.0


@dataclass(frozen=True)
class Figures:
    """The figures of one new replica."""

    ready_s: float
    read_bytes: float
    dram_rows: float
    #: As the server expected it; NaN without hot ids.
    expected: float
    #: Of all requests, and of the first tenth.
    hit_rate: float
    first_hit_rate: float
    p50_ms: float
    p99_ms: float


class World:
    """A published version, and requests for it."""

    def __init__(self, folder: Path, rows: int) -> None:
        rng = np.random.default_rng(3)
        popularity = zipf(rows)
        trained = rng.permutation(rows)
        uses = np.empty(rows, np.uint8)
        uses[trained] = expected_codes(popularity)
        self.version = publish(folder, rows, uses=uses)
        self._popularity = popularity
        # By rank, the row that is asked for: half of the ranks have another row than in the training.
        self._numbering = trained.copy()
        moved = np.flatnonzero(rng.random(rows) < 0.5)
        self._numbering[moved] = trained[rng.permutation(moved)]
        self.dram_bytes = slab_bytes(4 * DIM, int(rows * SHARE), 1)

    def bodies(self, count: int, ids: int, seed: int) -> list[tuple[bytes, int]]:
        """Draws requests: bodies and the lengths of their JSON parts."""
        rng = np.random.default_rng(seed)
        drawn: list[Array] = [self._numbering[self._popularity.ranks(rng, ids)] * 3 + 1 for _ in range(count)]
        return [binary_body([Tensor("item", "INT64", each)]) for each in drawn]


def measure(run: Run) -> None:
    """Publishes a version, warms a first replica, and starts new ones."""
    with object_store() as url:
        rows = run.size(ROWS, QUICK_ROWS)
        world = World(run.work / "made", rows)
        objects = ObjectStore(url)
        PublishedModel(objects, NAME).put(world.version)
        configure(objects, world, "loaded")
        steady = first_replica(run, url, world)
        listed = objects.read(f"{NAME}/{HOT_IDS}")
        assert listed is not None
        asked = world.bodies(REQUESTS // 10 if run.quick else REQUESTS, IDS, 9)
        found: dict[str, list[Figures]] = {kind: [] for kind in _KINDS}
        for _ in range(1 if run.quick else 3):
            for kind in _KINDS:
                configure(objects, world, str(RATE) if "ready_when" in kind else "loaded")
                objects.delete([f"{NAME}/{HOT_IDS}"])
                if kind != "without":
                    objects.create(f"{NAME}/{HOT_IDS}", listed.data)
                found[kind].append(new_replica(run, url, asked))
        report(run, found, steady, len(listed.data))


def configure(objects: ObjectStore, world: World, ready_when: str) -> None:
    """Writes the model's configuration into the object store."""
    values = {"dram_bytes": world.dram_bytes, "ready_when": ready_when, "live_guard": "false"}
    lines = [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items()]
    objects.edit(f"{NAME}/{CONFIG}", lambda _: "\n".join(lines).encode())


def first_replica(run: Run, url: str, world: World) -> float:
    """Lets a replica answer requests until it has written its hot ids; returns its hit rate of late."""
    place = run.work / "first"
    config = ServerConfig(
        model_repository=url, mirror_dir=place / "copy", store=place / "store", http_port=0, grpc_port=0, metrics_port=0
    )
    objects = ObjectStore(url)
    per_row = LOOKUPS_PER_ROW // 5 if run.quick else LOOKUPS_PER_ROW
    count = int(len(world._numbering) * SHARE * per_row / _WARM_IDS)
    # It would look for the first time after ten minutes.
    soon = (patch.object(shared_hot_ids, "FIRST_S", 0.0), patch.object(shared_hot_ids, "EVERY_S", 1.0))
    with soon[0], soon[1], Server(config) as server, connection(server.http_port) as client:
        for body, length in world.bodies(count, _WARM_IDS, 5):
            ask(client, body, length)
        objects.delete([f"{NAME}/{HOT_IDS}"])  # an earlier one, of a cache that had learnt less
        mount = server.repository._models[NAME].model.default
        assert mount is not None
        before = mount.store.stats().hits
        for body, length in world.bodies(800, _WARM_IDS, 6):
            ask(client, body, length)
        after = mount.store.stats().hits
        deadline = time.monotonic() + _WAIT_S
        while not _is_there(objects):
            if time.monotonic() > deadline:
                raise AssertionError(f"no hot ids were written within {_WAIT_S:g} s")
            time.sleep(0.1)
    shutil.rmtree(place)
    dram, ssd = after["dram"] - before["dram"], after["ssd"] - before["ssd"]
    return dram / (dram + ssd)


def new_replica(run: Run, url: str, asked: list[tuple[bytes, int]]) -> Figures:
    """Starts a server with empty folders, and asks it as soon as it is ready."""
    place = run.work / "new"
    place.mkdir()
    with ServerProcess(
        url, place / "store", place / "log", arguments=["--mirror-dir", str(place / "copy"), "--poll", "1"]
    ) as server, run.counted(server.process.pid), connection(server.http_port) as client:  # fmt: skip
        tenth = len(asked) // 10
        before = server.metrics()
        first = [ask(client, *each) for each in asked[:tenth]]
        middle = server.metrics()
        seconds = first + [ask(client, *each) for each in asked[tenth:]]
        page = server.metrics()
    shutil.rmtree(place)
    ready = {name: page.get(f'emberline_ready_{name}{{model="{NAME}"}}', math.nan) for name in _OF_START}
    p50, p99 = np.percentile(np.array(seconds) * 1000, [50, 99])
    return Figures(
        ready_s=ready["after_seconds"],
        read_bytes=ready["read_bytes"],
        dram_rows=ready["dram_rows"],
        expected=ready["hit_rate"],
        hit_rate=_hit_rate(before, page),
        first_hit_rate=_hit_rate(before, middle),
        p50_ms=float(p50),
        p99_ms=float(p99),
    )


_OF_START = ("after_seconds", "read_bytes", "dram_rows", "hit_rate")


def report(run: Run, found: dict[str, list[Figures]], steady: float, list_bytes: int) -> None:
    """Adds the claims, and a line for each kind of start."""
    without, loaded, hot = (found[kind] for kind in _KINDS)
    run.report.pairs(
        f"hit rate in the first {REQUESTS // 10} requests, with hot ids",
        [each.first_hit_rate for each in loaded], [each.first_hit_rate for each in without], "without", unit="",
        target=BETTER, note=f"the first replica: {steady:.3f}",
    )  # fmt: skip
    run.report.pairs(
        f"the same, ready_when {RATE}",
        [each.first_hit_rate for each in hot], [each.first_hit_rate for each in without], "without", unit="",
        target=BETTER,
    )  # fmt: skip
    run.report.pairs(
        f"hit rate in {REQUESTS} requests, ready_when {RATE}",
        [each.hit_rate for each in hot], [steady] * len(hot), "the first replica", unit="", target=RIGHT,
    )  # fmt: skip
    run.report.pairs(
        f"p99 of the first {REQUESTS} requests, ready_when {RATE}",
        [each.p99_ms for each in hot], [each.p99_ms for each in without], "without", unit="ms", less_is_better=True,
        target=1.0,
    )  # fmt: skip
    run.report.pairs(
        f"time to ready, ready_when {RATE}",
        [each.ready_s for each in hot], [each.ready_s for each in without], "without", unit="s", less_is_better=True,
        target=NO_LATER,
    )  # fmt: skip
    for kind in _KINDS:
        median = Figures(*(float(np.median(column)) for column in zip(*map(_values, found[kind]), strict=True)))
        run.report.remark(
            f"{kind}: ready after {median.ready_s:.1f} s, {median.read_bytes / 2**20:,.1f} MiB read, "
            f"{median.dram_rows:,.0f} rows in DRAM, expected hit rate {median.expected:.3f}; first requests "
            f"{median.first_hit_rate:.3f}, all {median.hit_rate:.3f}, p50 {median.p50_ms:.2f} ms, "
            f"p99 {median.p99_ms:.2f} ms"
        )
    run.report.remark(f"the list of hot ids: {list_bytes / 2**20:.2f} MiB; requests of {IDS} ids, one after the other")


def ask(client: http.client.HTTPConnection, body: bytes, length: int) -> float:
    """Sends a request and returns the seconds until its answer."""
    began = time.perf_counter()
    client.request("POST", f"/v2/models/{NAME}/infer", body, {"Inference-Header-Content-Length": str(length)})
    answer = client.getresponse()
    data = answer.read()
    if answer.status != 200:
        raise AssertionError(data[:200])
    return time.perf_counter() - began


@contextmanager
def connection(port: int) -> Iterator[http.client.HTTPConnection]:
    """Opens a connection to a server of this machine."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        yield client
    finally:
        client.close()


def _is_there(objects: ObjectStore) -> bool:
    try:
        objects.stat(f"{NAME}/{HOT_IDS}")
    except NotFound:
        return False
    return True


def _hit_rate(before: dict[str, float], after: dict[str, float]) -> float:
    """Returns the share of ids that DRAM answered between two pages of metrics."""
    keys = [f'emberline_ids_hit_total{{model="{NAME}",tier="{tier}",version="1"}}' for tier in ("dram", "ssd")]
    dram, ssd = (after[key] - before[key] for key in keys)
    return dram / (dram + ssd)


def _values(figures: Figures) -> list[float]:
    return list(vars(figures).values())


if __name__ == "__main__":
    script("replica")
