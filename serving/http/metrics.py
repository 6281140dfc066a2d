"""Collects the metrics of the models, their stores, GPUs and updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from prometheus_client import Metric

from serving.engine.model import LoadedModel
from serving.engine.statistics import ModelStatistics, SessionStatistics
from serving.gpu.device_model import DeviceModel
from serving.http.age_metrics import snapshot_ages, update_ages
from serving.http.cache_curves import CacheCurves
from serving.http.connection_metrics import connections
from serving.http.feedback_metrics import feedback
from serving.http.fleet_metrics import fleets
from serving.http.port_connections import ConnectionCounts
from serving.http.prometheus import Labels, encode, event_ages, family, label_value
from serving.http.request_metrics import observed, request_times
from serving.http.server_metrics import disks, readiness, starts
from serving.http.shadow_metrics import shadows
from serving.http.triton_metrics import MachineGauges, triton_metrics
from serving.pipeline.levels import named_counts
from serving.pipeline.snapshot import Snapshot
from serving.repository.model_repository import ModelRepository
from serving.updates.counters import UpdateCounters
from storage.errors import NotFound, Unsupported
from storage.hbm.statistics import HbmStats, HbmTableStats
from storage.objects.model_mirror import MirrorStatus
from storage.tiers.tiered import StoreStats, TableStats

T = TypeVar("T")

# No label.
_OF_STORE_TRAFFIC: list[tuple[str, str, str]] = [
    ("object_store_requests_total", "Requests to the object store of the repository", "requests"),
    ("object_store_failures_total", "Requests to it that failed after they were repeated", "failures"),
    ("object_store_read_bytes_total", "Bytes that came from it", "bytes_read"),
]

# Names without the prefix, meanings, and functions of the value. A name that ends in _total is a counter, any other a
# gauge.
_Rows = list[tuple[str, str, Callable[[T], float]]]

_STAGES = ("queue", "compute_input", "compute_infer", "compute_output")

# Labels: model, version, arm.
_OF_ARMS: _Rows[ModelStatistics] = [
    ("requests_success_total", "Requests answered", lambda a: a.stages["success"].count),
    ("requests_failure_total", "Requests not answered", lambda a: a.stages["fail"].count),
    ("requests_rejected_total", "Requests that met a full queue", lambda a: a.rejected),
    ("rows_total", "Rows scored", lambda a: a.inference_count),
    ("batches_total", "Batches executed", lambda a: a.execution_count),
]
_OF_SNAPSHOTS: _Rows[Snapshot] = [
    ("snapshot_sequence", "Delta that the served snapshot ends with, 0 for the version itself", lambda s: s.sequence),
    ("snapshot_published_unix_seconds", "When the served snapshot was published", lambda s: s.published_unix_ms / 1000),
]
# Labels: model, version.
_OF_MODELS: list[tuple[str, str, Callable[[LoadedModel, StoreStats], float]]] = [
    ("ids_absent_total", "Ids that are in no tier", lambda _, s: s.absent),
    ("ids_unresolved_total", "Ids without an answer in time", lambda _, s: s.unresolved),
    ("queue_length", "Requests that wait for a session", lambda m, _: m.queued),
    ("sessions", "Sessions", lambda m, _: m.sessions),
    ("promotions_total", "Rows that came into DRAM when they were asked for", lambda _, s: s.promotions),
    ("promotions_dropped_total", "Reads that met a full promotion queue", lambda _, s: s.promotions_dropped),
    ("evictions_total", "Rows that DRAM let go", lambda _, s: s.evictions),
    ("ssd_reads_total", "Lookups that waited for rows of the SSD", lambda _, s: s.reads),
    ("ssd_read_rows_total", "Different rows that they read", lambda _, s: s.rows_read),
    ("ssd_read_seconds_total", "Time that they waited for them", lambda _, s: s.read_ns / 1e9),
    ("absent_ids_remembered", "Absent ids that cost no read", lambda _, s: s.negative_ids),
    ("canary_fraction", "Share of the requests that a canary answers", lambda m, _: _canary(m)[1]),
]
_OF_STORES = [
    ("ids_hit_total", "Ids answered by a tier", "hits"),
    ("tier_rows", "Rows in a tier", "rows"),
    ("tier_bytes", "Bytes of a tier", "bytes"),
]
_OF_TABLES = [
    ("table_ids_hit_total", "Ids of a table answered by a tier", "hits"),
    ("table_rows", "Rows of a table in a tier", "rows"),
    ("table_bytes", "Bytes of a table in a tier", "bytes"),
]
# Labels: model, version, table.
_OF_ONE_TABLE: _Rows[TableStats] = [
    ("table_ids_absent_total", "Ids of a table that are in no tier", lambda t: t.absent),
    ("table_ids_unresolved_total", "Ids of a table without an answer in time", lambda t: t.unresolved),
    ("table_promotions_total", "Rows that came into DRAM when they were asked for", lambda t: t.promotions),
    ("table_evictions_total", "Rows that DRAM let go", lambda t: t.evictions),
]
# Labels: model, version, session.
_OF_SESSIONS: _Rows[SessionStatistics] = [
    ("session_batches_total", "Batches that a session executed", lambda s: s.batches),
    ("session_rows_total", "Rows that a session scored", lambda s: s.rows),
    ("session_busy_seconds_total", "Time that a session worked on batches", lambda s: s.busy_ns / 1e9),
]
# Labels: model, version, gpu.
_OF_GPUS: _Rows[DeviceModel] = [
    ("gpu_padded_rows_total", "Rows of zeros that fill batches up", lambda g: g.counters.padded_rows),
    ("gpu_copied_bytes_total", "Bytes of inputs copied to the GPU", lambda g: g.counters.copied_bytes),
    ("gpu_weight_uploads_total", "Weights copied into a weight slot", lambda g: g.weight_slots.uploads),
    ("gpu_on_processor_total", "Batches that the processor answered", lambda g: g.counters.on_processor),
    ("gpu_given_up", "1 when the GPU is not used any more", lambda g: int(bool(g.given_up))),
]
# These are about a GPU's cache of rows. Labels: model, version, gpu; for a table also table.
_OF_HBM: _Rows[HbmStats] = [
    ("hbm_bytes", "Memory that a GPU's cache of rows takes", lambda h: h.device_bytes),
    ("hbm_capacity_rows", "Rows that a GPU's cache has room for", lambda h: h.capacity_rows),
    ("hbm_snapshots", "Snapshots that a GPU's cache answers for", lambda h: h.snapshots),
    ("hbm_evicted_total", "Rows that a GPU's cache let go for others", lambda h: h.evicted),
]
_OF_HBM_TABLES: _Rows[HbmTableStats] = [
    ("hbm_rows", "Rows of a table on a GPU", lambda t: t.rows),
    ("hbm_hits_total", "Ids of a table that a GPU had", lambda t: t.lookups - t.misses),
    ("hbm_misses_total", "Ids of a table that a GPU was asked for and had not", lambda t: t.misses),
    ("hbm_admitted_total", "Rows of a table that came to a GPU", lambda t: t.admitted),
]
# Label: model.
_OF_MIRRORS: _Rows[MirrorStatus] = [
    ("mirror_folders_total", "Versions and deltas that came from the object store", lambda m: m.folders),
    ("mirror_missing_bytes", "Bytes of what is on its way that have not come", lambda m: m.total_bytes - m.done_bytes),
    ("mirror_failing", "1 while the object store cannot be followed", lambda m: bool(m.error)),
    ("mirror_checked_unix_seconds", "When the object store last said what is published", lambda m: m.checked_unix),
]
_OF_UPDATES: _Rows[UpdateCounters] = [
    ("deltas_applied_total", "Deltas that became visible", lambda u: u.deltas_applied),
    ("versions_loaded_total", "Full versions that became visible", lambda u: u.versions_loaded),
    ("rollbacks_total", "Rollbacks", lambda u: u.rollbacks),
    ("live_auc_held_total", "Canaries that were held for their live AUC", lambda u: u.live_auc_held),
    ("merges_total", "Overlays merged into the base", lambda u: u.merges),
    ("merge_failures_total", "Merges that failed", lambda u: u.merge_failures),
    ("merge_failing", "1 while merging fails and is tried again", lambda u: u.merge_failing),
    ("stores_rebuilt_total", "Damaged stores that another one replaced", lambda u: u.stores_rebuilt),
    (
        "store_rebuilding",
        "1 while a store is damaged and another is filled to take its place",
        lambda u: u.store_rebuilding,
    ),
    (
        "update_visible_seconds",
        "From the newest delta's appearance in the folder until requests saw it",
        lambda u: u.last_visible_ms / 1000,
    ),
    ("update_rows", "Rows of the newest delta", lambda u: u.last_delta_rows),
    ("overlays", "Deltas kept unmerged", lambda u: u.overlays),
    ("overlay_bytes", "What unmerged deltas take", lambda u: u.overlay_bytes),
    ("overlay_rows", "Rows of unmerged deltas", lambda u: u.overlay_rows),
    ("snapshots_held", "Snapshots that a rollback or a stopped canary set aside", lambda u: u.held),
    ("update_staging", "1 while a version or delta is read, staged and judged", lambda u: u.staging),
    ("update_waiting", "1 while something published waits", lambda u: u.waiting is not None),
]


_FRESHNESS = "From an event until the first snapshot that was trained on it was served"

#: Returns, for each transport that is served natively, the requests answered and what went to the Python path.
NativeCounts = Callable[[], dict[str, tuple[int, int]]]


class ServerMetrics:
    """Builds the metrics page of a repository. Thread-safe."""

    def __init__(
        self,
        repository: ModelRepository,
        native_counts: NativeCounts = dict,
        restarts: int = 0,
        connections: ConnectionCounts = tuple,
    ) -> None:
        """native_counts: see NativeCounts. restarts: how often this server's process crashed and was started again.

        connections: see ConnectionCounts.
        """
        self._repository = repository
        self._native_counts = native_counts
        self._restarts = restarts
        # One for all pages, because it keeps the values of the last page.
        self._machine = MachineGauges()
        self._connections = connections
        self._curves = CacheCurves()

    def page(self, accept: str) -> tuple[bytes, str]:
        """Returns the page and its content type. accept: the request's Accept header."""
        return encode(self.families, accept)

    def families(self) -> Iterator[Metric]:
        """Yields every metric with its current value."""
        models = list(self._repository.loaded())
        known = [(model.store_stats(), _labels(model), model) for model in models]
        yield from _arms(models)
        for name, meaning, of_model in _OF_MODELS:
            yield _family(name, meaning, ((of, of_model(model, stats)) for stats, of, model in known))
        for name, meaning, field in _OF_STORES:
            yield _family(name, meaning, (each for stats, of, _ in known for each in _by_tier(stats, field, of)))
        yield from self._curves.families([(model, of) for _, of, model in known])
        yield from _levels(models)
        yield from _sessions(models)
        yield from _gpus(models)
        yield from _hbm(models)
        yield from _tables([(stats, of) for stats, of, _ in known])
        yield from _updates(self._repository)
        yield from _mirror(self._repository)
        yield from readiness(self._repository)
        yield from fleets(self._repository)
        yield from shadows(self._repository)
        yield from feedback(self._repository)
        yield from disks(self._repository.store_dir, self._repository.folder)
        yield from connections(self._connections())
        yield from starts(self._repository)
        yield from observed(self._repository.observation)
        meaning = "Times that the server's process crashed and was started again"
        yield _family("restarts_total", meaning, [({}, self._restarts)])
        counts = self._native_counts()
        if "http" in counts:
            answered, handed_over = counts["http"]
            yield _family("http_native_requests_total", "Requests that native code answered", [({}, answered)])
            yield _family("http_handed_over_total", "Times that a connection was handed to Python", [({}, handed_over)])
        if "grpc" in counts:
            answered, passed_on = counts["grpc"]
            yield _family("grpc_native_requests_total", "Calls that native code answered", [({}, answered)])
            yield _family("grpc_passed_on_total", "Calls that were passed on to Python", [({}, passed_on)])
        yield from triton_metrics(self._repository.answerers(), self._machine)


def _arms(models: Iterable[LoadedModel]) -> Iterator[Metric]:
    arms = [(arm, {**_labels(model), "arm": name}) for model in models for name, arm in model.arms.items()]
    yield from _each(_OF_ARMS, arms)
    spent = (({**of, "stage": stage}, arm.stages[stage].ns / 1e9) for arm, of in arms for stage in _STAGES)
    yield _family("stage_seconds_total", "Time that requests spent in a stage", spent)
    yield from request_times(arms)
    served = [(snapshot, of) for model in models for snapshot, of in _served(model)]
    yield from _each(_OF_SNAPSHOTS, served)
    yield from snapshot_ages(served)


def _levels(models: Iterable[LoadedModel]) -> Iterator[Metric]:
    """Yields which level answered for ids of features with a fallback, where there are any."""
    counts = [
        ({**_labels(model), "feature": feature.name, "level": str(level), "rows": name}, count)
        for model in models
        for feature, counted in model.level_counts()
        for level, name, count in named_counts(feature, counted)
    ]
    if counts:
        meaning = "Ids of a feature with a fallback by the level that answered, 0 for their own rows"
        yield _family("fallback_ids_total", meaning, counts)


def _sessions(models: Iterable[LoadedModel]) -> Iterator[Metric]:
    known = [
        (session.statistics, {**_labels(model), "session": session.name.rpartition("#")[2]})
        for model in models
        for session in model.group.sessions
    ]
    yield from _each(_OF_SESSIONS, known)
    changes = [
        ({**_labels(model), "direction": direction}, count)
        for model in models
        if model.scaling is not None
        for direction, count in model.scaling.changes.items()
    ]
    if changes:
        yield _family("session_changes_total", "Changes of the number of sessions by max_sessions", changes)


def _gpus(models: Iterable[LoadedModel]) -> Iterator[Metric]:
    known = [
        (device, {**_labels(model), "gpu": str(index)})
        for model in models
        for index, device in sorted(model.parts.devices.models.items())
    ]
    if not known:
        return
    batches = (
        ({**of, "graph": str(size)}, count)
        for device, of in known
        for size, count in sorted(device.counters.batches.items())
    )
    yield _family("gpu_batches_total", "Batches by the size of their CUDA graph, eager without one", batches)
    yield from _each(_OF_GPUS, known)


def _hbm(models: Iterable[LoadedModel]) -> Iterator[Metric]:
    known: list[tuple[HbmStats, list[str], Labels]] = []
    given_up: list[tuple[Labels, float]] = []
    for model in models:
        for index, device in sorted(model.parts.devices.models.items()):
            gpu = device.gpu
            if gpu is not None:
                names = [label_value(spec.name) for spec in gpu.store.tables]
                known.append((gpu.tier.stats(), names, {**_labels(model), "gpu": str(index)}))
                given_up.append((known[-1][2], float(bool(gpu.tier.trouble))))
    if not known:
        return
    yield from _each(_OF_HBM, [(stats, of) for stats, _, of in known])
    yield _family("hbm_given_up", "1 when a GPU holds no rows any more", given_up)
    tables = [
        (each, {**of, "table": table})
        for stats, names, of in known
        for table, each in zip(names, stats.tables, strict=True)
    ]
    yield from _each(_OF_HBM_TABLES, tables)


def _tables(known: Iterable[tuple[StoreStats, Labels]]) -> Iterator[Metric]:
    tables = [
        (each, {**of, "table": label_value(table)}) for stats, of in known for table, each in stats.tables.items()
    ]
    for name, meaning, field in _OF_TABLES:
        yield _family(name, meaning, (each for table, of in tables for each in _by_tier(table, field, of)))
    yield from _each(_OF_ONE_TABLE, tables)


def _updates(repository: ModelRepository) -> Iterator[Metric]:
    known: list[tuple[UpdateCounters, Labels]] = []
    for model in repository.names:
        try:
            known.append((repository.update_counters(model), {"model": label_value(model)}))
        except (NotFound, Unsupported):  # removed since the names were read; or a model that has no updates
            continue
    yield from _each(_OF_UPDATES, known)
    yield from update_ages(known)
    newest = ((of, counters.newest_event_unix_ms / 1000) for counters, of in known if counters.newest_event_unix_ms)
    meaning = "Time of the newest event that the served snapshot was trained on"
    yield _family("newest_event_unix_seconds", meaning, newest)
    yield event_ages("emberline_freshness_seconds", _FRESHNESS, ((counters.event_ages, of) for counters, of in known))
    budgets = ((of, counters.dram_bytes) for counters, of in known if counters.dram_bytes is not None)
    yield _family("dram_budget_bytes", "What the rows may take in DRAM; not there without a budget", budgets)
    refused = (
        ({**of, "reason": reason}, count)
        for counters, of in known
        for reason, count in sorted(counters.refused.copy().items())
    )
    meaning = "Versions and deltas that were refused, by the kind of error"
    yield _family("updates_refused_total", meaning, refused)


def _mirror(repository: ModelRepository) -> Iterator[Metric]:
    mirror = repository.mirror
    if mirror is None:
        return
    for name, meaning, field in _OF_STORE_TRAFFIC:
        yield _family(name, meaning, [({}, getattr(mirror.traffic, field))])
    statuses = mirror.statuses().items()
    yield from _each(_OF_MIRRORS, [(status, {"model": label_value(name)}) for name, status in statuses])


def _by_tier(stats: StoreStats | TableStats, field: str, of: Labels) -> Iterator[tuple[Labels, float]]:
    for tier, count in getattr(stats, field).items():
        yield {**of, "tier": tier}, count


def _labels(model: LoadedModel) -> Labels:
    return {"model": label_value(model.name), "version": str(model.version)}


def _served(model: LoadedModel) -> Iterator[tuple[Snapshot, Labels]]:
    yield model.history.current, {**_labels(model), "arm": "main"}
    canary = model.history.canary
    if canary is not None:
        yield canary[0], {**_labels(model), "arm": "canary"}


def _canary(model: LoadedModel) -> tuple[Snapshot | None, float]:
    return model.history.canary or (None, 0.0)


def _each(rows: _Rows[T], known: Sequence[tuple[T, Labels]]) -> Iterator[Metric]:
    for name, meaning, value in rows:
        yield _family(name, meaning, ((of, value(each)) for each, of in known))


def _family(name: str, meaning: str, samples: Iterable[tuple[Labels, float]]) -> Metric:
    return family(f"emberline_{name}", "counter" if name.endswith("_total") else "gauge", meaning, samples)
