"""The metrics page: counters and gauges in Prometheus' text form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from serving.control.calls import ControlCalls
from serving.engine.model import LoadedModel
from serving.engine.statistics import ModelStatistics, SessionStatistics
from serving.gpu.device_model import DeviceModel
from serving.http.encoding import compress
from serving.http.messages import HttpRequest, HttpResponse
from serving.http.prometheus import escaped, head, label_text
from serving.http.triton_metrics import MachineGauges, triton_lines
from serving.pipeline.snapshot import Snapshot
from serving.repository.model_repository import ModelRepository
from serving.updates.counters import UpdateCounters
from storage.errors import NotFound, Overloaded, Unsupported
from storage.hbm.statistics import HbmStats, HbmTableStats
from storage.tiers.tiered import StoreStats, TableStats

_STAGES = ("queue", "compute_input", "compute_infer", "compute_output")

# Labels: model, version, arm.
_OF_ARMS: list[tuple[str, str, str, Callable[[ModelStatistics], float]]] = [
    ("requests_success_total", "counter", "Requests answered", lambda a: a.stages["success"].count),
    ("requests_failure_total", "counter", "Requests not answered", lambda a: a.stages["fail"].count),
    ("requests_rejected_total", "counter", "Requests that met a full queue", lambda a: a.rejected),
    ("rows_total", "counter", "Rows scored", lambda a: a.inference_count),
    ("batches_total", "counter", "Batches executed", lambda a: a.execution_count),
]
_OF_SNAPSHOTS: list[tuple[str, str, Callable[[Snapshot], float]]] = [
    ("snapshot_sequence", "Delta that the served snapshot ends with, 0 for the version itself", lambda s: s.sequence),
    (
        "snapshot_published_unix_seconds",
        "When the served snapshot was published",
        lambda s: s.published_unix_ms / 1000,
    ),
]
# Labels: model, version.
_OF_MODELS: list[tuple[str, str, str, Callable[[LoadedModel, StoreStats], float]]] = [
    ("ids_absent_total", "counter", "Ids that are in no tier", lambda _, s: s.absent),
    ("ids_unresolved_total", "counter", "Ids without an answer in time", lambda _, s: s.unresolved),
    ("queue_length", "gauge", "Requests that wait for a session", lambda m, _: m.queued),
    ("sessions", "gauge", "Sessions", lambda m, _: m.sessions),
    ("promotions_total", "counter", "Rows that came into DRAM when they were asked for", lambda _, s: s.promotions),
    ("promotions_dropped_total", "counter", "Reads that met a full promotion queue", lambda _, s: s.promotions_dropped),
    ("evictions_total", "counter", "Rows that DRAM let go", lambda _, s: s.evictions),
    ("absent_ids_remembered", "gauge", "Absent ids that cost no read", lambda _, s: s.negative_ids),
    ("canary_fraction", "gauge", "Share of the requests that a canary answers", lambda m, _: _canary(m)[1]),
]
_OF_STORES = [
    ("ids_hit_total", "counter", "Ids answered by a tier", "hits"),
    ("tier_rows", "gauge", "Rows in a tier", "rows"),
    ("tier_bytes", "gauge", "Bytes of a tier", "bytes"),
]
_OF_TABLES = [
    ("table_ids_hit_total", "counter", "Ids of a table answered by a tier", "hits"),
    ("table_rows", "gauge", "Rows of a table in a tier", "rows"),
    ("table_bytes", "gauge", "Bytes of a table in a tier", "bytes"),
]
# Labels: model, version, table.
_OF_ONE_TABLE: list[tuple[str, str, str, Callable[[TableStats], float]]] = [
    ("table_ids_absent_total", "counter", "Ids of a table that are in no tier", lambda t: t.absent),
    ("table_ids_unresolved_total", "counter", "Ids of a table without an answer in time", lambda t: t.unresolved),
    (
        "table_promotions_total",
        "counter",
        "Rows that came into DRAM when they were asked for",
        lambda t: t.promotions,
    ),
    ("table_evictions_total", "counter", "Rows that DRAM let go", lambda t: t.evictions),
]
# Labels: model, version, session.
_OF_SESSIONS: list[tuple[str, str, Callable[[SessionStatistics], float]]] = [
    ("session_batches_total", "Batches that a session executed", lambda s: s.batches),
    ("session_rows_total", "Rows that a session scored", lambda s: s.rows),
    ("session_busy_seconds_total", "Time that a session worked on batches", lambda s: s.busy_ns / 1e9),
]
# Labels: model, version, gpu.
_OF_GPUS: list[tuple[str, str, str, Callable[[DeviceModel], int]]] = [
    ("gpu_padded_rows_total", "counter", "Rows of zeros that fill batches up", lambda g: g.counters.padded_rows),
    ("gpu_copied_bytes_total", "counter", "Bytes of inputs copied to the GPU", lambda g: g.counters.copied_bytes),
    ("gpu_weight_uploads_total", "counter", "Weights copied into a weight slot", lambda g: g.weight_slots.uploads),
    ("gpu_on_processor_total", "counter", "Batches that the processor answered", lambda g: g.counters.on_processor),
    ("gpu_given_up", "gauge", "1 when the GPU is not used any more", lambda g: int(bool(g.given_up))),
]
# Of a GPU's cache of rows. Labels: model, version, gpu; and with table.
_OF_HBM: list[tuple[str, str, str, Callable[[HbmStats], int]]] = [
    ("hbm_bytes", "gauge", "Memory that a GPU's cache of rows takes", lambda h: h.device_bytes),
    ("hbm_capacity_rows", "gauge", "Rows that a GPU's cache has room for", lambda h: h.capacity_rows),
    ("hbm_snapshots", "gauge", "Snapshots that a GPU's cache answers for", lambda h: h.snapshots),
    ("hbm_evicted_total", "counter", "Rows that a GPU's cache let go for others", lambda h: h.evicted),
]
_OF_HBM_TABLES: list[tuple[str, str, str, Callable[[HbmTableStats], int]]] = [
    ("hbm_rows", "gauge", "Rows of a table on a GPU", lambda t: t.rows),
    ("hbm_hits_total", "counter", "Ids of a table that a GPU had", lambda t: t.lookups - t.misses),
    ("hbm_misses_total", "counter", "Ids of a table that a GPU was asked for and had not", lambda t: t.misses),
    ("hbm_admitted_total", "counter", "Rows of a table that came to a GPU", lambda t: t.admitted),
]
# Label: model.
_OF_UPDATES: list[tuple[str, str, str, Callable[[UpdateCounters], float]]] = [
    ("deltas_applied_total", "counter", "Deltas that became visible", lambda u: u.deltas_applied),
    ("versions_loaded_total", "counter", "Full versions that became visible", lambda u: u.versions_loaded),
    ("rollbacks_total", "counter", "Rollbacks", lambda u: u.rollbacks),
    ("merges_total", "counter", "Overlays merged into the base", lambda u: u.merges),
    ("merge_failures_total", "counter", "Merges that failed", lambda u: u.merge_failures),
    ("merge_failing", "gauge", "1 while merging fails and is tried again", lambda u: u.merge_failing),
    ("stores_rebuilt_total", "counter", "Damaged stores that another one replaced", lambda u: u.stores_rebuilt),
    (
        "store_rebuilding",
        "gauge",
        "1 while a store is damaged and another is filled to take its place",
        lambda u: u.store_rebuilding,
    ),
    (
        "update_visible_seconds",
        "gauge",
        "From the newest delta's appearance in the folder until requests saw it",
        lambda u: u.last_visible_ms / 1000,
    ),
    ("update_rows", "gauge", "Rows of the newest delta", lambda u: u.last_delta_rows),
    ("overlays", "gauge", "Deltas kept unmerged", lambda u: u.overlays),
    ("overlay_bytes", "gauge", "What unmerged deltas take", lambda u: u.overlay_bytes),
    ("snapshots_held", "gauge", "Snapshots that a rollback or a stopped canary set aside", lambda u: u.held),
    ("update_waiting", "gauge", "1 while something published waits", lambda u: u.waiting is not None),
]


def metrics_text(repository: ModelRepository, machine: MachineGauges) -> str:
    """The page. machine: the same for every page, for it knows the last one."""
    models = list(repository.loaded())
    lines: list[str] = []
    _arms(lines, models)
    known = [(model, model.store_stats(), _labels(model)) for model in models]
    for name, kind, meaning, value in _OF_MODELS:
        _head(lines, name, kind, meaning)
        lines.extend(f"emberline_{name}{{{labels}}} {value(model, stats)}" for model, stats, labels in known)
    for name, kind, meaning, field in _OF_STORES:
        _head(lines, name, kind, meaning)
        for _, stats, labels in known:
            for tier, count in getattr(stats, field).items():
                lines.append(f'emberline_{name}{{{labels},tier="{tier}"}} {count}')
    _sessions(lines, models)
    _gpus(lines, models)
    _hbm(lines, models)
    _tables(lines, [(stats, labels) for _, stats, labels in known])
    _updates(lines, repository)
    lines += triton_lines(repository.answerers(), machine)
    return "\n".join(lines) + "\n"


def _gpus(lines: list[str], models: Iterable[LoadedModel]) -> None:
    known = [
        (device, f'{_labels(model)},gpu="{index}"')
        for model in models
        for index, device in sorted(model.parts.devices.models.items())
    ]
    if not known:
        return
    _head(lines, "gpu_batches_total", "counter", "Batches by the size of their CUDA graph, eager without one")
    for device, labels in known:
        for size, count in sorted(device.counters.batches.items()):
            lines.append(f'emberline_gpu_batches_total{{{labels},graph="{size}"}} {count}')
    for name, kind, meaning, value in _OF_GPUS:
        _head(lines, name, kind, meaning)
        lines.extend(f"emberline_{name}{{{labels}}} {value(device):d}" for device, labels in known)


def _hbm(lines: list[str], models: Iterable[LoadedModel]) -> None:
    known: list[tuple[HbmStats, list[str], str]] = []
    for model in models:
        for index, device in sorted(model.parts.devices.models.items()):
            gpu = device.gpu
            if gpu is not None:
                names = [escaped(spec.name) for spec in gpu.store.tables]
                known.append((gpu.tier.stats(), names, f'{_labels(model)},gpu="{index}"'))
    if not known:
        return
    for name, kind, meaning, value in _OF_HBM:
        _head(lines, name, kind, meaning)
        lines.extend(f"emberline_{name}{{{labels}}} {value(stats)}" for stats, _, labels in known)
    for name, kind, meaning, of_table in _OF_HBM_TABLES:
        _head(lines, name, kind, meaning)
        for stats, names, labels in known:
            lines.extend(
                f'emberline_{name}{{{labels},table="{table}"}} {of_table(each)}'
                for table, each in zip(names, stats.tables, strict=True)
            )


def _sessions(lines: list[str], models: Iterable[LoadedModel]) -> None:
    known = [(model, session) for model in models for session in model.group.sessions]
    for name, meaning, value in _OF_SESSIONS:
        _head(lines, name, "counter", meaning)
        for model, session in known:
            number = session.name.rpartition("#")[2]
            lines.append(f'emberline_{name}{{{_labels(model)},session="{number}"}} {value(session.statistics)}')


def _arms(lines: list[str], models: Iterable[LoadedModel]) -> None:
    arms = [(arm, f'{_labels(model)},arm="{name}"') for model in models for name, arm in model.arms.items()]
    for name, kind, meaning, value in _OF_ARMS:
        _head(lines, name, kind, meaning)
        lines.extend(f"emberline_{name}{{{labels}}} {value(arm)}" for arm, labels in arms)
    _head(lines, "stage_seconds_total", "counter", "Time that requests spent in a stage")
    for arm, labels in arms:
        spent = ((stage, arm.stages[stage].ns / 1e9) for stage in _STAGES)
        lines.extend(f'emberline_stage_seconds_total{{{labels},stage="{stage}"}} {time:.9f}' for stage, time in spent)
    served = [(snapshot, labels) for model in models for snapshot, labels in _served(model)]
    for name, meaning, of_snapshot in _OF_SNAPSHOTS:
        _head(lines, name, "gauge", meaning)
        lines.extend(f"emberline_{name}{{{labels}}} {of_snapshot(snapshot)}" for snapshot, labels in served)


def _tables(lines: list[str], known: Sequence[tuple[StoreStats, str]]) -> None:
    for name, kind, meaning, field in _OF_TABLES:
        _head(lines, name, kind, meaning)
        for stats, labels in known:
            for table, each in stats.tables.items():
                for tier, count in getattr(each, field).items():
                    lines.append(f'emberline_{name}{{{labels},table="{table}",tier="{tier}"}} {count}')
    for name, kind, meaning, value in _OF_ONE_TABLE:
        _head(lines, name, kind, meaning)
        for stats, labels in known:
            lines.extend(
                f'emberline_{name}{{{labels},table="{table}"}} {value(each)}' for table, each in stats.tables.items()
            )


def _updates(lines: list[str], repository: ModelRepository) -> None:
    known: list[tuple[str, UpdateCounters]] = []
    for model in repository.names:
        try:
            known.append((escaped(model), repository.update_counters(model)))
        except (NotFound, Unsupported):  # gone since the names were read; or a model that has no updates
            continue
    for name, kind, meaning, value in _OF_UPDATES:
        _head(lines, name, kind, meaning)
        lines.extend(f'emberline_{name}{{model="{model}"}} {+value(counters)}' for model, counters in known)
    _head(lines, "dram_budget_bytes", "gauge", "What the rows may take in DRAM; not there without a budget")
    for model, counters in known:
        if counters.dram_bytes is not None:
            lines.append(f'emberline_dram_budget_bytes{{model="{model}"}} {counters.dram_bytes}')
    _head(lines, "updates_refused_total", "counter", "Versions and deltas that were refused, by the kind of error")
    for model, counters in known:
        for reason, count in sorted(counters.refused.copy().items()):
            lines.append(f'emberline_updates_refused_total{{model="{model}",reason="{reason}"}} {count}')


def _labels(model: LoadedModel) -> str:
    return label_text(model=model.name, version=model.version)


def _served(model: LoadedModel) -> Iterator[tuple[Snapshot, str]]:
    yield model.history.current, f'{_labels(model)},arm="main"'
    canary = model.history.canary
    if canary is not None:
        yield canary[0], f'{_labels(model)},arm="canary"'


def _canary(model: LoadedModel) -> tuple[Snapshot | None, float]:
    return model.history.canary or (None, 0.0)


def _head(lines: list[str], name: str, kind: str, meaning: str) -> None:
    head(lines, f"emberline_{name}", kind, meaning)


class MetricsApp:
    """See HttpApplication: one page."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository
        self._calls = ControlCalls(limit=4)
        self._machine = MachineGauges()

    def admit(self, request: HttpRequest) -> None:
        """Everything is."""

    def answer_at_once(self, request: HttpRequest) -> HttpResponse | None:
        """Nothing is."""

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """See HttpApplication."""
        status, body = 404, b"only GET /metrics is here\n"
        if request.path == "/metrics" and request.method == "GET":
            # Off the event loop: an update may be writing its state just now, and counters wait for it.
            try:
                text = await self._calls.run(lambda: metrics_text(self._repository, self._machine))
                status, body = 200, text.encode()
            except Overloaded as error:
                status, body = 503, str(error).encode()
        headers = [(b"content-type", b"text/plain; version=0.0.4")]
        accepts = request.headers.get(b"accept-encoding")
        if accepts is not None:
            body = await compress(body, accepts, headers)
        return HttpResponse(status, body, headers)
