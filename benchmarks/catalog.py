"""Lists the benchmarks of store and engine, runs one by name, and handles interruption."""

from __future__ import annotations

import difflib
import importlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from rich.console import Console

from benchmarks.gauge import CpuGauge
from benchmarks.machine import available_bytes, machine_line
from benchmarks.measure import PIECE_S, REPEATS, RUN_UP_S, STEADY_S, Contestant, Samples, interleave
from benchmarks.report import Report
from storage.errors import ConfigError, EmberlineError

# name -> one line for --list
BENCHMARKS = {
    "lookup": "ids to rows in DRAM: the machine's limit, torch, TorchRec, threads, overhead of a call",
    "pooling": "sums over bags of ten ids: FBGEMM, torch EmbeddingBag, the dense limit",
    "session": "a DLRM in one session: its lookup beside the gather of its rows, inputs stacked beside one by one",
    "ssd": "rows from SSD, cold and warm: the disk's random reads, rocksdict, LMDB",
    "tiered": "a table ten times its DRAM budget: hit rates beside the best static choice, speed, memory of a row",
    "plan_accuracy": "what a plan says of four budgets, beside what traffic that it has not seen gives there",
    "fallback": "chains of fallback rows: a lookup with them beside one without, every id hit, a tenth and half absent",
    "snapshot_reads": "two snapshots compared, and files searched for rows, beside SHA-256 of the same bytes",
    "update": "readers beside a writer of a million rows a second; torn rows are looked for",
    "train": "training: embeddings beside FBGEMM, a DLRM beside torch and TorchRec, growth, rows on SSD, admission",
    "ranks": "two ranks beside one process, beside two without exchange, beside DDP; their bytes; bf16 and fp16",
    "data": "Parquet to batches of tensors, beside pyarrow; three of 41 columns; a training beside its stages alone",
    "any_model_delta": "a plain torch module refreshed: its comparison beside reading both, large weights, p99, Triton",
    "mirror": "a repository in an object store: downloads beside plain obstore, requests, publish to served",
    "replica": "a new replica over an object store: hit rate and p99 of its first requests, with hot ids and without",
    "fleet": "three replicas over an object store: publish to all, how closely they switch, older answers, requests",
    "scaling": "a fleet up to 1,000 replicas: requests, bytes and times beside what fleet_costs computes of them",
    "drift": "AUC served while tastes turn: a model that follows the clicks beside the same one, updated once a day",
    "films": "AUC served on MovieLens by time: a delta each ten minutes beside the same model, updated once a day",
    "freshness": "a stream of 5,000 events/s that is trained on, published and served: event written to score changed",
    "zoo": "AUC of every model on the bundled sets, beside a logistic regression and LightGBM on the same features",
    "features": "requests to ids and dense values: fixed cost, an id, each transform, beside a copy of the same bytes",
    "engine": "the whole server: one user of many items, overload, two sessions beside one",
    "transports": "shared memory beside bytes, tokens and TLS beside neither",
    "observing": "metrics and structured logs, 1% traced, five consoles, each beside none: requests/s, processor time",
    "shadow": "a shadow that scores a tenth of the requests: the main arm's p99 with it and without, at half load",
    "sessions_by_load": "sessions that follow a load that rises and falls, beside one session and beside the most",
    "triton": "a DLRM behind the whole server and behind Triton: processor time of a request, requests/s, latencies",
    "load_generators": "the tail that `emberline loadtest` measures, beside wrk2, h2load and perf_analyzer at one rate",
    "held_rate": "the rate that `emberline loadtest --find-p99 10` finds, held for five minutes: its p99 then",
    "bulk_load": "unsorted rows to a store on disk: rocksdict, LMDB, a plain sequential write",
    "import_tables": "rows of HPS files in random order to a published version: the disk's sequential write, memory",
    "gpu_sessions": "sessions on a GPU: graphs, sessions beside one, a batch's time, idle gaps, the whole way, deltas",
    "gpu_lookup": "rows on a GPU, every id hits: the limit by row numbers, torch EmbeddingBag, FBGEMM, a small graph",
    "gpu_training": "training on a GPU: samples/s beside the processor, in three precisions; parts of a step; compiled",
    "gpu_tiers": "a store with a GPU over it: a tenth of the rows there, the rest in DRAM; a delta beside four streams",
}
QUICK_S = 30.0


@dataclass
class Run:
    """The arguments of a benchmark: how large its tables are, how long it may take, and where its rows go."""

    #: The report that rows and remarks are added to.
    report: Report
    #: An empty folder on a disk, removed afterwards.
    work: Path
    quick: bool = False
    #: Rows of the largest table; None: the benchmark's own size.
    rows: int | None = None
    repeats: int = REPEATS
    #: Seconds after which nothing new is begun. None: no bound, except for a quick run.
    max_s: float | None = None
    #: The bound of a quick run.
    quick_s: float = QUICK_S
    began: float = field(default_factory=time.monotonic)
    #: Parts of the benchmark to measure; () for all.
    only: tuple[str, ...] = ()
    #: The data set to measure on; None: the benchmark's own.
    data: Path | None = None
    #: Ids of processes that count as ours (see `counted`).
    children: list[int] = field(default_factory=list)

    def size(self, full: int, quick: int) -> int:
        """Returns the number of rows to measure with."""
        return self.rows or (quick if self.quick else full)

    def wants(self, part: str) -> bool:
        """Returns whether a part of the benchmark is to be measured."""
        return not self.only or part in self.only

    @property
    def piece_s(self) -> float:
        """The duration of one measurement of short work, in seconds."""
        return 0.02 if self.quick else PIECE_S

    @property
    def steady(self) -> dict[str, float]:
        """The duration of one measurement that reads much memory, and of its run-up: arguments of a contestant."""
        piece_s, run_up_s = (0.03, 0.01) if self.quick else (STEADY_S, RUN_UP_S)
        return {"piece_s": piece_s, "run_up_s": run_up_s}

    def is_late(self, rest: str) -> bool:
        """Returns whether the run has used up its time; if so, adds a remark that `rest` is left out."""
        late = self.left_s() <= 0.0
        if late:
            self.report.remark(f"left out, for want of time: {rest}")
        return late

    def lacks_memory(self, needed: int, rest: str) -> bool:
        """Returns whether `needed` bytes exceed the free memory; if so, adds a remark that `rest` is left out.

        Leaving it out is better than being killed for lack of memory.
        """
        free = available_bytes()
        if needed > free:
            self.report.remark(
                f"left out, for want of memory: {rest} needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} are free"
            )
        return needed > free

    def left_s(self) -> float:
        """Returns the seconds that the run has left."""
        bound = self.max_s if self.max_s is not None else self.quick_s if self.quick else math.inf
        return max(0.0, bound - (time.monotonic() - self.began))

    @contextmanager
    def counted(self, *pids: int) -> Iterator[None]:
        """Counts the processor time of these processes as ours, not as a disturbance, while the context is open."""
        self.children += pids
        try:
            yield
        finally:
            for pid in pids:
                self.children.remove(pid)

    def interleave(
        self,
        contestants: Mapping[str, Contestant],
        *,
        max_s: float = 20.0,
        quiet_cores: float | None = None,
    ) -> Samples:
        """Calls `measure.interleave` with this run's settings; a quick run stops after a second.

        `settle` raises KeyboardInterrupt when the samples were interrupted.
        Use: samples = run.interleave(...); report.compare(...); run.settle(samples).
        """
        gauge = CpuGauge(children=self.children) if quiet_cores is None else CpuGauge(quiet_cores, self.children)
        limit = min(1.0 if self.quick else max_s, self.left_s())
        return interleave(contestants, repeats=3 if self.quick else self.repeats, gauge=gauge, max_s=limit)

    def settle(self, samples: Samples) -> None:
        """Raises KeyboardInterrupt if these samples were interrupted; their rows are in the report by now."""
        if samples.interrupted:
            raise KeyboardInterrupt


def check_name(name: str) -> str:
    """Returns the name. Raises ConfigError that names the nearest one."""
    if name not in BENCHMARKS:
        raise ConfigError(wrong_name(name), field="name")
    return name


def module_of(name: str) -> str:
    """Returns the module of a benchmark.

    Those of a GPU have a folder of their own: gpu_lookup is benchmarks.gpu.lookup.
    """
    return f"benchmarks.{name.replace('gpu_', 'gpu.', 1) if name.startswith('gpu_') else name}"


def wrong_name(name: str) -> str:
    """Returns the error message for a name that is no benchmark."""
    near = difflib.get_close_matches(name, BENCHMARKS, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(BENCHMARKS)}"
    return f"no benchmark {name!r}; {hint}"


def check_parts(name: str, only: Sequence[str], parts: Sequence[str]) -> None:
    """Raises ConfigError if a benchmark does not have one of the parts."""
    for part in only:
        if part not in parts:
            has = f"has the parts {', '.join(parts)}" if parts else "has no parts"
            raise ConfigError(f"--only {part}: {name} {has}", field="only")


def list_lines() -> list[str]:
    """Returns one line for each benchmark."""
    width = max(map(len, BENCHMARKS))
    return [f"{name:<{width}}  {line}" for name, line in BENCHMARKS.items()]


@dataclass(frozen=True)
class Options:
    """The command line's options. Raises ConfigError for invalid values."""

    #: A rough run, in about 30 seconds.
    quick: bool = False
    #: File to write the rows to.
    json: Path | None = None
    #: File to draw the ratios into.
    plot: Path | None = None
    #: Another size of the largest table.
    rows: int | None = None
    #: Undisturbed repeats of each measurement.
    repeats: int = REPEATS
    #: Seconds after which nothing new is begun.
    max_s: float | None = None
    #: Parts of the benchmark to measure; () for all.
    only: tuple[str, ...] = ()
    #: A data set of the user's.
    data: Path | None = None

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 10_000:
            raise ConfigError(f"--rows is {self.rows}, expected 10,000 or more", field="rows")
        if not 1 <= self.repeats <= 1000:
            raise ConfigError(f"--repeats is {self.repeats}, expected 1 to 1000", field="repeats")
        if self.max_s is not None and not self.max_s > 0:
            raise ConfigError(f"--max-seconds is {self.max_s}, expected more than 0", field="max_s")
        for option, path in (("json", self.json), ("plot", self.plot)):
            if path is not None and not path.parent.is_dir():
                raise ConfigError(f"--{option} {path}: no folder {path.parent}", field=option)


def run(name: str, options: Options, console: Console, work: Path) -> Report:
    """Runs one benchmark, prints its table and writes its files; when interrupted, it does so with the rows it has.

    work: an empty folder on a disk. Raises ConfigError for a wrong name, and after its table the EmberlineError that
    ended the benchmark.
    """
    module = importlib.import_module(module_of(check_name(name)))
    measure: Callable[[Run], None] = module.measure
    check_parts(name, options.only, getattr(module, "PARTS", ()))
    if options.data is not None and not getattr(module, "READS_DATA", False):
        raise ConfigError(f"--data: {name} makes its own data", field="data")
    draw: Callable[[Report, Path], None] | None = getattr(module, "draw", None)
    if options.plot is not None and draw is None:
        from benchmarks.plot import need_matplotlib

        need_matplotlib()
    report = Report(name, options.quick)
    began = time.monotonic()
    try:
        with terminated_as_interrupt():
            console.print(machine_line(), markup=False, highlight=False, soft_wrap=True)
            quick_s = getattr(module, "QUICK_S", QUICK_S)
            measure(
                Run(
                    report,
                    work,
                    options.quick,
                    options.rows,
                    options.repeats,
                    options.max_s,
                    quick_s,
                    only=options.only,
                    data=options.data,
                )
            )
    except KeyboardInterrupt:
        report.interrupted = True
    except EmberlineError:
        report.print(console)
        raise
    report.print(console)
    console.print(f"{time.monotonic() - began:.0f} s", markup=False, highlight=False)
    if options.json is not None:
        report.write_json(options.json)
    if options.plot is not None and report.rows:
        from benchmarks.plot import plot

        (draw or plot)(report, options.plot)
    return report


@contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """Makes SIGTERM end a run as Ctrl-C does, so that the rows measured so far are printed."""

    def stop(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
