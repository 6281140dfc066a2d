"""Claims: requests, reads and bytes of a fleet are what fleet_costs computes, up to 1,000 replicas.

moto's S3 server runs in a process of its own with a counter before it. Up to 30 real servers in this process take
deltas as one fleet, over a store that answers each request after 20 ms; beyond that there are 100 and 1,000 replica
objects, which the holder of the lease reads as it does while it commits. moto answers some 350 requests a second on one
core, so times beyond a hundred objects are moto's, and those of 30 servers on few cores are the cores'; counts and
bytes are what a real store would see.

    python -m benchmarks.scaling            # about six minutes
    python -m benchmarks.scaling --quick
    python -m benchmarks.scaling --only holder,head
    python -m benchmarks.fleet_costs        # what these costs come to for a fleet of yours
"""

from __future__ import annotations

import shutil
import time
from collections import Counter

import numpy as np

from benchmarks import fleet_costs, fleet_model
from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.counted_store import Asked, CountedStore, counted_store
from benchmarks.delta_world import DIM, DeltaWorld
from benchmarks.fleet_costs import size
from benchmarks.fleet_model import Load, costs
from benchmarks.fleet_world import NAME, head_with, replica_object, running_fleet
from storage._pages import PageFile, PageWriter
from storage.objects import ObjectStore
from storage.objects.fleet import FleetObjects
from storage.objects.head import Head
from storage.objects.mirror import RepositoryMirror
from storage.objects.published import PublishedModel

PARTS = ("fleet", "holder", "head", "deltas", "pages", "mirror")
LATENCY_S = 0.02
SERVERS, QUICK_SERVERS = (3, 10, 30), (3,)
DELTAS, QUICK_DELTAS, CHANGED = 8, 2, 1_000
OBJECTS, QUICK_OBJECTS = (3, 10, 100, 1000), (3, 10)
ROWS, QUICK_ROWS = 2_000_000, 50_000
#: A fleet's requests depend on when its replicas look, so theirs may be a quarter more. Those of more servers than a
#: few depend on how long the cores of this machine take to stage a delta in all of them.
NEAR, EXACT, FEW = 0.8, 0.95, 10
# Row type -> bytes of a value and of the rest of a row.
_ROW_TYPES = {"fp32": (4, 0), "bf16": (2, 0), "int8": (1, 4)}
_DIMS = (16, 64, 128)


def measure(run: Run) -> None:
    """Measures each part beside what is computed, and prints the table of the computed figures."""
    for count in QUICK_SERVERS if run.quick else SERVERS:
        if run.wants("fleet") and not run.is_late(f"{count} servers"):
            with counted_store() as store:
                fleet(run, store, count)
    if run.wants("holder"):
        with counted_store() as store:
            holder(run, store)
    if run.wants("head"):
        head(run)
    if run.wants("deltas"):
        deltas(run)
    if run.wants("pages"):
        pages(run)
    if run.wants("mirror") and not run.is_late("mirror"):
        with counted_store() as store:
            mirror(run, store)
    if run.only:
        return
    for line in fleet_costs.table([Load(replicas=count) for count in (3, 100, 1000)], fleet_model.Prices()):
        run.report.remark(line)


def fleet(run: Run, store: CountedStore, count: int) -> None:
    """Counts what servers and their publisher ask for a snapshot, and the time until all of them serve it."""
    with running_fleet(store, run.work / f"fleet{count}", count) as running:
        store.set_latency(LATENCY_S)
        seconds = 2.0 if run.quick else 10.0
        idle = running.idle(seconds).count("GET") / seconds / count
        load = Load(replicas=count, latency_ms=LATENCY_S * 1000, changed_rows=CHANGED, row_bytes=4 * DIM)
        expected = costs(load)
        run.report.pairs(
            f"GETs of an idle replica and hour, of {count}, without the {fleet_model.SIDE_PER_H} that come more seldom",
            [idle * 3600], [3600 / load.poll_s], "computed", unit="", less_is_better=True, target=EXACT,
        )  # fmt: skip
        taken = [running.take("delta", CHANGED) for _ in range(QUICK_DELTAS if run.quick else DELTAS)]
        whole = [running.take("cumulative", CHANGED), running.take("version", 0)]
        store.set_latency(0.0)
    gets = [each.asked.count("GET") - idle * each.span_s * count for each in taken]
    puts, lists = ([float(each.asked.count(method)) for each in taken] for method in ("PUT", "LIST"))
    served = [each.served_s for each in taken]
    target = NEAR if count <= FEW else None
    for what, found, computed, unit, least in (
        (
            f"GETs of a delta, {count} replicas, beyond the idle ones",
            gets,
            expected.gets_delta,
            "",
            NEAR if count <= FEW else None,
        ),
        (f"PUTs of it, {count} replicas", puts, expected.puts_delta, "", target),
        (f"LISTs of it, {count} replicas", lists, expected.lists_delta, "", None),
        (f"{count} replicas serve it, after its publishing", served, expected.served_s, "s", None),
    ):
        against = [computed] * len(found)
        run.report.pairs(what, found, against, "computed", unit=unit, less_is_better=True, target=least)
    for kind, each in zip(("a cumulative delta", "a version that equals what is served"), whole, strict=True):
        read = each.asked.answered["GET", "files", "206"] / count
        run.report.pairs(
            f"each of {count} replicas reads of {kind}", [read], [float(each.bytes)], "all of it", unit="B",
            less_is_better=True, target=EXACT,
        )  # fmt: skip
    run.report.remark(f"of a delta, {count} replicas and the publisher: {_kinds([each.asked for each in taken])}")


def holder(run: Run, store: CountedStore) -> None:
    """Reads as many replica objects as a holder does when all of them are new, with and without a latency."""
    model = PublishedModel(ObjectStore(store.url), NAME)
    writer = FleetObjects(model)
    for count in QUICK_OBJECTS if run.quick else OBJECTS:
        for number in range(count):
            writer.report(replica_object(number))
        for latency_s in (0.0, LATENCY_S):
            store.set_latency(latency_s)
            objects = FleetObjects(model)
            before, began = store.asked(), time.perf_counter()
            if len(objects.replicas()) != count:
                raise AssertionError(f"not all of {count} replica objects were read")
            first_s, asked = time.perf_counter() - began, store.asked() - before
            began = time.perf_counter()
            objects.replicas()
            again_s = time.perf_counter() - began
            computed = costs(Load(replicas=count, latency_ms=latency_s * 1000)).holder_s
            run.report.pairs(
                f"the holder reads {count:,} replica objects, {latency_s * 1000:.0f} ms a request", [first_s],
                [computed or first_s], "computed" if computed else "itself", unit="s", less_is_better=True,
                note=f"{asked.count('GET')} GETs, {asked.count('LIST')} LISTs, {size(asked.bytes)}; unchanged "
                f"{again_s * 1000:,.0f} ms",
            )  # fmt: skip
        store.set_latency(0.0)


def head(run: Run) -> None:
    """Measures head.json with different numbers of deltas, and the time to read it."""
    for versions, count, leaving in ((1, 0, 0), (2, 32, 10), (2, 48, 10), (2, 256, 100), (2, 4096, 100)):
        data = head_with(versions, count, leaving).to_bytes()
        began = time.perf_counter()
        Head.from_bytes(data, "head.json")
        taken = time.perf_counter() - began
        computed = fleet_model.HEAD_BYTES + fleet_model.HEAD_DELTA_BYTES * count
        computed += fleet_model.HEAD_LEAVING_BYTES * leaving
        run.report.pairs(
            f"head.json of {versions} versions and {count:,} deltas, {leaving} folders leaving", [len(data)],
            [computed], "computed", unit="B", less_is_better=True, target=NEAR if count else None,
            note=f"read in {taken * 1000:.2f} ms",
        )  # fmt: skip


def deltas(run: Run) -> None:
    """Measures the bytes of a delta by its rows."""
    rows = run.size(ROWS, QUICK_ROWS)
    world = DeltaWorld(run.work / "deltas", NAME, rows)
    version = sum(path.stat().st_size for path in world.version.rglob("*") if path.is_file())
    sizes = {}
    for changed in (1_000, rows // 20):
        world.change(changed)
        folder = world.publisher.publish("delta")
        sizes[changed] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        shares = {path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    (few, least), (many, most) = sizes.items()
    per_row = (most - least) / (many - few)
    run.report.pairs(
        f"bytes of a changed row of {DIM} floats in a delta", [per_row], [4 * DIM + fleet_model.DELTA_ROW_EXTRA],
        "computed", unit="B", less_is_better=True, target=EXACT,
        note=f"and {size(least - few * per_row)} for the rest of it: {', '.join(sorted(shares))}",
    )  # fmt: skip
    run.report.pairs(
        f"bytes of a row of {DIM} floats in a version", [version / rows], [4 * DIM + fleet_model.ROW_EXTRA],
        "computed", unit="B", less_is_better=True, target=NEAR,
    )  # fmt: skip


def pages(run: Run) -> None:
    """Writes page files of each row type and dim, and compares the bytes of a row on disk and in memory."""
    rows = 200_000 if not run.quick else 50_000
    ids = np.arange(rows, dtype=np.int64) * 3
    for row_type, (value_bytes, more) in _ROW_TYPES.items():
        for dim in _DIMS:
            row_bytes = value_bytes * dim + more
            path = run.work / f"{row_type}-{dim}.pages"
            writer = PageWriter(str(path), table=0, row_bytes=row_bytes, row_type=row_type)
            writer.append(ids, np.zeros((rows, row_bytes), np.uint8))
            writer.finish()
            file = PageFile.open(str(path))
            run.report.pairs(
                f"a row of {dim} values in {row_type}, {row_bytes} B, on SSD", [file.file_bytes / rows],
                [fleet_model.page_bytes(row_bytes)], "computed", unit="B", less_is_better=True, target=EXACT,
                note=f"its index in DRAM: {file.memory_bytes / rows:.2f} B, "
                f"computed {fleet_model.index_bytes(row_bytes):.2f}",
            )  # fmt: skip
            path.unlink()


def mirror(run: Run, store: CountedStore) -> None:
    """Measures the processor time of a mirror for what it brings; the store is another process."""
    world = DeltaWorld(run.work / "large", NAME, run.size(ROWS, QUICK_ROWS))
    PublishedModel(ObjectStore(store.url), NAME).put(world.version)
    bytes_ = sum(path.stat().st_size for path in world.version.rglob("*") if path.is_file())
    seconds, busy, asked = [], [], Asked(Counter(), Counter())
    for turn in range(2 if run.quick else 5):
        folder = run.work / f"mirror{turn}"
        copy = RepositoryMirror(store.url, folder, models=[NAME])
        before, began, used = store.asked(), time.perf_counter(), time.process_time()
        copy.once()
        seconds.append((time.perf_counter() - began) / bytes_ * 1e9)
        busy.append((time.process_time() - used) / bytes_ * 1e9)
        asked = store.asked() - before
        copy.stop()
        shutil.rmtree(folder)
    run.report.pairs(
        f"processor time of a mirror for a GB, version of {size(bytes_)}", busy, seconds, "elapsed, most of it moto's",
        unit="s", less_is_better=True, note=f"{asked.count('GET')} GETs",
    )  # fmt: skip


def _kinds(asked: list[Asked]) -> str:
    """Returns the mean requests of each kind."""
    counts: Counter[tuple[str, str, str]] = sum((each.requests for each in asked), Counter())
    return ", ".join(
        f"{method} {name} {status} {count / len(asked):.1f}"
        for (method, name, status), count in sorted(counts.items())
        if status != "412"
    )


if __name__ == "__main__":
    script("scaling")
