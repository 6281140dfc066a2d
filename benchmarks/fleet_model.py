"""Computes what a fleet asks of its object store, moves, stores and costs, from the costs that `scaling` measured.

Nothing is measured here. `python -m benchmarks scaling` compares the counts and bytes of this module with those of real
servers, objects and files; `python -m benchmarks.fleet_costs` prints what it computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from storage.objects.fetching import PIECE_BYTES

#: Hours of a month, as bills count them.
MONTH_H = 730

# What one delta costs a replica beside the looks that it makes anyway: head.json twice, the configuration twice, the
# manifest, the lease. Then the files, and a look each tenth of a second while it waits for the others.
GETS, ROUND_S = 6, 0.1
# After a second of waiting each replica also asks who holds the lease: three requests a second.
LEASE_PER_S = 3.0
# Files of a delta beside its tables: weights, golden requests, removed ids.
FILES = 3
# What a publisher writes beside the files: claim, manifest, head.json; what it and a commit read.
PUBLISHER_PUTS, PUBLISHER_GETS = 3, 5
# The holder: a commit and the lease; replicas read at a time, keys of a listing, seconds from its commit to the switch.
HOLDER_PUTS, READS, PAGE_KEYS, LEAD_S = 2, 8, 1000, 0.3
# Deltas of a version that no other one follows.
ENDLESS = 1000
# What a holder asks one after the other to commit, beside what replicas say: the lease, a listing, head.json, a write.
COMMIT_TRIPS = 4
# Looks for new models and edited configurations, and for hot ids, of an idle replica and hour.
SIDE_PER_H = 63
# head.json: without deltas, with each delta that it names, and with each folder that is leaving (for ten minutes).
HEAD_BYTES, HEAD_DELTA_BYTES, HEAD_LEAVING_BYTES, LEAVING_H = 700, 180, 60, 1 / 6
# A row in a version: its id and its use count beside its values; in a delta its id, use count and stamp.
ROW_EXTRA, DELTA_ROW_EXTRA = 9, 9
# Weights, golden requests and manifest of a delta; those of a DLRM or a transformer are more.
DELTA_BYTES = 1 << 20


@dataclass(frozen=True)
class Load:
    """Says what is published, and how replicas follow it. Raises ValueError for values that mean nothing."""

    replicas: int = 100
    rows: float = 1e9
    #: Bytes of the values of a row as stored: 256 for 64 floats in fp32, 68 in int8.
    row_bytes: float = 256
    deltas_per_hour: float = 60
    changed_rows: float = 100_000
    tables: int = 1
    #: Share of a delta's rows that changed earlier since the version, too: cumulative deltas hold them once.
    overlap: float = 0.5
    cumulative_every: int = 16
    version_every: int = 256
    keep_deltas: int = 32
    poll_s: float = 1.0
    latency_ms: float = 20.0
    #: Bytes a second that a replica takes from the store, at most: its network, or its mirror.
    replica_gbit: float = 10.0
    #: What the store gives all replicas together, and the disk and the DRAM for the index of one.
    store_gbit: float = 100.0
    disk_tb: float = 15.0
    index_gb: float = 64.0

    def __post_init__(self) -> None:
        positive = ("replicas", "rows", "row_bytes", "tables", "keep_deltas", "poll_s", "replica_gbit", "store_gbit")
        for name in (*positive, "disk_tb", "index_gb"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected more than 0")
        for name in ("deltas_per_hour", "changed_rows", "cumulative_every", "version_every", "latency_ms"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 0 or more")
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"overlap is {self.overlap}, expected 0 to 1")


@dataclass(frozen=True)
class Prices:
    """List prices in dollars: S3 Standard in us-east-1, as remembered in November 2026."""

    get_per_1000: float = 0.0004
    put_per_1000: float = 0.005
    store_gb_month: float = 0.023
    #: A byte that leaves the region, or crosses zones through a gateway; within the region S3 takes nothing.
    read_gb: float = 0.0
    #: SSD of replicas as a network volume (gp3); disks inside a machine come with it.
    ssd_gb_month: float = 0.08


@dataclass(frozen=True)
class Costs:
    """Holds what follows from a load, for all replicas together unless something else is said."""

    gets_idle_h: float
    gets_delta: float
    puts_delta: float
    lists_delta: float
    #: Requests a second: while nothing is published, and while all wait for the last one.
    rate_idle: float
    rate_waiting: float
    head_bytes: float
    delta_bytes: float
    #: Mean bytes of a delta, cumulative ones counted.
    mean_delta_bytes: float
    version_bytes: float
    #: Bytes that all replicas read in an hour: head.json, deltas, versions.
    head_h: float
    deltas_h: float
    versions_h: float
    #: Seconds in which the holder of the lease reads what all say.
    holder_s: float
    #: Seconds from the end of publishing until all serve a delta, without the time in which it is staged.
    served_s: float
    #: Seconds until one replica has a version.
    version_s: float
    #: On the SSD of one replica at most, while a version replaces another.
    replica_ssd_bytes: float
    #: Directory and filters of one replica's page files, in DRAM.
    index_bytes: float
    requests_month: float
    read_month: float
    store_month: float
    ssd_month: float


def costs(load: Load, prices: Prices | None = None) -> Costs:
    """Returns what a fleet costs."""
    price = prices or Prices()
    n, hours = load.replicas, load.deltas_per_hour
    latency_s = load.latency_ms / 1000
    delta_bytes = DELTA_BYTES + load.changed_rows * (load.row_bytes + DELTA_ROW_EXTRA)
    cumulated = DELTA_BYTES + load.changed_rows * (load.row_bytes + DELTA_ROW_EXTRA) * _cumulation(load)
    version_bytes = DELTA_BYTES + load.rows * (load.row_bytes + ROW_EXTRA)
    holder_s = (math.ceil(n / PAGE_KEYS) + math.ceil(n / READS)) * latency_s
    # Replicas look at different times, and wait for the last of them, and for the commit.
    wait_s = load.poll_s * (n - 1) / (n + 1) / 2 + holder_s + COMMIT_TRIPS * latency_s
    looks_per_s = 1 / (ROUND_S + latency_s)
    # head.json, manifest, files, report: one after the other.
    trips_s = 4 * latency_s
    rate = load.replica_gbit * 1e9 / 8
    files = max(FILES + load.tables, delta_bytes / PIECE_BYTES)
    gets = n * (GETS + files + looks_per_s * wait_s + LEASE_PER_S * max(0.0, wait_s - 1)) + n + PUBLISHER_GETS
    puts = n + HOLDER_PUTS + PUBLISHER_PUTS + files
    lists = math.ceil(n / PAGE_KEYS) * (1 + wait_s / (ROUND_S + 3 * latency_s))
    idle_h = n * (3600 / load.poll_s + SIDE_PER_H)
    # The newest ones, and those that they are reached through.
    through = load.cumulative_every - 1 if load.cumulative_every else load.version_every or ENDLESS
    kept_deltas = load.keep_deltas + max(0, min(through, (load.version_every or ENDLESS) - load.keep_deltas))
    head = HEAD_BYTES + HEAD_DELTA_BYTES * kept_deltas + HEAD_LEAVING_BYTES * hours * LEAVING_H
    versions = hours / load.version_every if load.version_every else 0.0
    pages = page_bytes(load.row_bytes) * load.rows
    head_h, deltas_h, versions_h = n * 2 * hours * head, n * hours * cumulated, n * versions * version_bytes
    replica_ssd = 2 * version_bytes + 2 * pages + kept_deltas * cumulated
    return Costs(
        gets_idle_h=idle_h,
        gets_delta=gets,
        puts_delta=puts,
        lists_delta=lists,
        rate_idle=idle_h / 3600,
        rate_waiting=n * (looks_per_s + LEASE_PER_S),
        head_bytes=head,
        delta_bytes=delta_bytes,
        mean_delta_bytes=cumulated,
        version_bytes=version_bytes,
        head_h=head_h,
        deltas_h=deltas_h,
        versions_h=versions_h,
        holder_s=holder_s,
        served_s=load.poll_s + trips_s + delta_bytes / rate + holder_s + COMMIT_TRIPS * latency_s + LEAD_S,
        version_s=version_bytes / rate,
        replica_ssd_bytes=replica_ssd,
        index_bytes=index_bytes(load.row_bytes) * load.rows,
        requests_month=MONTH_H
        * ((idle_h + hours * gets) * price.get_per_1000 + hours * (puts + lists) * price.put_per_1000)
        / 1000,
        read_month=MONTH_H * (head_h + deltas_h + versions_h) / 1e9 * price.read_gb,
        store_month=(2 * version_bytes + kept_deltas * cumulated) / 1e9 * price.store_gb_month,
        ssd_month=n * replica_ssd / 1e9 * price.ssd_gb_month,
    )


def _cumulation(load: Load) -> float:
    """Returns the rows of a mean delta, cumulative ones counted, in units of changed_rows.

    Where no version follows, it is that of the first thousand deltas.
    """
    every, count = load.cumulative_every, load.version_every or ENDLESS
    if not every or every > count:
        return 1.0
    whole = range(every, count, every)  # the last one is followed by the version
    limit = load.rows / max(1.0, load.changed_rows)
    return (count - len(whole) + sum(min(limit, 1 + (at - 1) * (1 - load.overlap)) for at in whole)) / count


def page_rows(row_bytes: float) -> tuple[int, int]:
    """Returns the bytes of a page of the store and the rows in it (docs/ssd.md)."""
    page, cell = 4096, int(row_bytes) + 8
    while 3 * ((page - 16) // cell) * cell < 2 * page:
        page *= 2
    return page, (page - 16) // cell


def page_bytes(row_bytes: float) -> float:
    """Returns the bytes that a row takes in a page file, with directory and filter."""
    page, rows = page_rows(row_bytes)
    return page / rows + index_bytes(row_bytes)


def index_bytes(row_bytes: float) -> float:
    """Returns the bytes of DRAM that directory and filters take a row: a page's first id, ten bits an id."""
    rows = page_rows(row_bytes)[1]
    return (8 + math.ceil(rows * 10 / 64) * 8) / rows
