"""Claims: two ranks beside one process on the same batches, what they send, what rounding costs, and what reading does.

Each rank has a core and a thread. Ours read Parquet, make features and learn, as a training does. Beside them: one
process on one core; two processes with half of the batch each that exchange nothing, which is the limit; torch's
DistributedDataParallel over dense embeddings, with a tenth of the rows and batches that lie in memory; and TorchRec's
DistributedModelParallel over FBGEMM, with as many rows and such batches (`python -m benchmarks.peers.environment`).

    python -m benchmarks.ranks                # about ten minutes, two free cores
    python -m benchmarks.ranks --quick
    python -m benchmarks.ranks --only wire,torchrec
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.measure import Contestant, Samples
from benchmarks.peers import PeerMissingError, environment
from benchmarks.rank_peers import ROWS as PEER_ROWS
from benchmarks.rank_program import RUN_UP, Steps, serve
from benchmarks.rank_reading import reading, serve_reading
from benchmarks.rank_world import BATCH, IDS, LAYERS, Task, needed_bytes, write_clicks
from storage.errors import Unavailable

PARTS = ("speed", "wire", "reading", "torchrec")
#: Seconds after which a quick run begins nothing new.
QUICK_S = 150.0
OVER_ONE = 1.7
#: A rank sends at most 1.1 times what its ids, rows and gradients need.
OF_NEEDED = 1 / 1.1
_ROWS, _QUICK_ROWS, _VALID_ROWS = 600_000, 200_000, 100_000
_STEPS, _QUICK_STEPS = 60, 10
_DIM = 16
_SAMPLES = 1e-3
_MAX_S = 240.0
_WAIT_S = 300.0


def measure(run: Run) -> None:
    """Measures speed and bytes, and training in 16 bits."""
    clicks = run.work / "clicks.parquet"
    write_clicks(clicks, run.size(_ROWS, _QUICK_ROWS))
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        run.report.remark("this machine has one core: two ranks share it, and no figure of speed means anything")
    if run.wants("speed"):
        for layers in LAYERS:
            if not run.is_late(f"speed, {layers} layers"):
                speed(run, clicks, layers, cores)
    if run.wants("wire") and not run.is_late("wire"):
        wires(run, clicks, cores)
    if run.wants("reading") and not run.is_late("reading"):
        reading(run, lambda kind, path, size: ranks(kind, path, BATCH, cores, size, serve_reading))
    if run.wants("torchrec"):
        for layers in LAYERS:
            if not run.is_late(f"torchrec, {layers} layers"):
                torchrec(run, clicks, layers, cores)


class Group:
    """Processes that train together, each on a core."""

    def __init__(self, tasks: list[Task], program: Callable[[Task, Connection], None] = serve) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for task in tasks:
            mine, theirs = context.Pipe()
            process = context.Process(target=program, args=(task, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        """The ids of the processes."""
        return [process.pid or 0 for process in self._processes]

    def ready(self) -> None:
        """Waits until all have built what they train."""
        self._answers()

    def ask(self, what: int | Path) -> list[Any]:
        """Has them train so many steps, or evaluate a file, and returns what each answers."""
        for pipe in self._pipes:
            pipe.send(what)
        return self._answers()

    def _answers(self) -> list[Any]:
        found = []
        for pipe in self._pipes:
            try:
                if not pipe.poll(_WAIT_S):
                    raise Unavailable("a process that trains did not answer")
                found.append(pipe.recv())
            except EOFError:
                raise Unavailable("a process that trains has ended; what it said stands above") from None
        return found

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def ranks(
    kind: str,
    data: Path,
    batch: int,
    cores: list[int],
    size: int = 2,
    program: Callable[[Task, Connection], None] = serve,
    **options: Any,
) -> Group:
    """Starts so many ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = ((rank, cores[rank % len(cores)]) for rank in range(size))
    return Group([Task(kind, data, batch, rank, size, port, core, options) for rank, core in places], program)


@contextmanager
def started(run: Run, groups: Mapping[str, Group]) -> Iterator[None]:
    """Ends the groups with the block."""
    with ExitStack() as stack:
        for group in groups.values():
            stack.callback(group.close)
        for group in groups.values():
            group.ready()
            stack.enter_context(run.counted(*group.pids))
        yield


def _taken(run: Run, groups: Mapping[str, Group], steps: int) -> tuple[Samples, dict[str, list[list[Steps]]]]:
    """Returns samples a second of groups that take turns, and what their steps cost."""
    figures: dict[str, list[list[Steps]]] = {name: [] for name in groups}

    def contestant(name: str) -> Contestant:
        def one(turn: int) -> float:
            found = groups[name].ask(steps)
            if turn:
                figures[name].append(found)
            return steps * BATCH / max(float(each.seconds) for each in found)

        return one

    with started(run, groups):
        samples = run.interleave({name: contestant(name) for name in groups}, max_s=_MAX_S)
    return samples, figures


def speed(run: Run, data: Path, layers: str, cores: list[int]) -> None:
    """Compares samples and processor time of a step, and bytes."""
    steps = _QUICK_STEPS if run.quick else _STEPS
    groups = {
        "ours": ranks("ours", data, BATCH, cores, layers=layers),
        "one process": Group([Task("ours", data, BATCH, core=cores[0], options={"layers": layers})]),
        "no exchange": Group(
            [Task("ours", data, BATCH // 2, core=core, options={"layers": layers}) for core in (cores * 2)[:2]]
        ),
        "DDP": ranks("ddp", data, BATCH, cores, layers=layers),
    }
    samples, figures = _taken(run, groups, steps)
    what = f"DLRM, {layers} layers, d{_DIM}, batches of {BATCH:,}"
    targets = {"one process": OVER_ONE, "no exchange": None, "DDP": None}
    for name, target in targets.items():
        note = f"{PEER_ROWS:,} rows a table instead of {IDS:,}" if name == "DDP" else ""
        run.report.compare(
            f"two ranks, {what}", samples, name, unit="k samples/s", scale=_SAMPLES, target=target, note=note
        )
    for name in targets:
        busy = {key: [max(each.processor_seconds for each in of) / steps for of in figures[key]] for key in figures}
        whole = min(len(each) for each in busy.values())  # the end of the time may have cut a round short
        run.report.pairs(
            f"processor time of a step at the busier rank, {what}",
            [1000 * each for each in busy["ours"][:whole]],
            [1000 * each for each in busy[name][:whole]],
            name,
            unit="ms",
            target=targets[name],
            less_is_better=True,
        )
    _bytes(run, data, figures["ours"], steps, what)
    _shares(run, figures, steps, layers)
    run.settle(samples)


def _bytes(run: Run, data: Path, found: list[list[Steps]], steps: int, what: str) -> None:
    """Compares what a rank sends of rows with what it must."""
    sent = [
        sum(count for kind, count in each.sent.items() if kind != "dense") / steps / 1000 for of in found for each in of
    ]
    must = needed_bytes(data, BATCH, 2, _DIM) / 1000
    kinds = {kind: sum(each.sent[kind] for of in found for each in of) / steps / len(sent) for kind in found[0][0].sent}
    run.report.pairs(
        f"bytes that a rank sends in a step for its ids, {what}",
        sent,
        [must] * len(sent),
        "ids, rows and gradients alone",
        unit="kB",
        target=OF_NEEDED,
        less_is_better=True,
        note=", ".join(f"{kind} {count / 1000:,.0f} kB" for kind, count in kinds.items()),
    )


def _shares(run: Run, figures: Mapping[str, list[list[Steps]]], steps: int, layers: str) -> None:
    """Says how long a step of ours waits for the other rank."""
    of = [each for turn in figures["ours"] for each in turn]
    waited, seconds = (sum(getattr(each, name) for each in of) for name in ("waited_seconds", "seconds"))
    run.report.remark(f"{layers} layers: {waited / seconds:.0%} of a step in exchanges and waiting for the other rank")


def torchrec(run: Run, data: Path, layers: str, cores: list[int]) -> None:
    """Compares samples and processor time of a step with TorchRec's, by two ranks and by one."""
    try:
        environment.python()
    except PeerMissingError as missing:
        run.report.remark(f"TorchRec: {missing}")
        return
    steps = _QUICK_STEPS if run.quick else _STEPS
    groups = {
        "two ranks": ranks("ours", data, BATCH, cores, layers=layers),
        "one process": Group([Task("ours", data, BATCH, core=cores[0], options={"layers": layers})]),
        "TorchRec, two ranks": ranks("torchrec", data, BATCH, cores, layers=layers),
        "TorchRec, one process": ranks("torchrec", data, BATCH, cores, size=1, layers=layers),
    }
    samples, figures = _taken(run, groups, steps)
    whole = min(map(len, figures.values()))  # the end of the time may have cut a round short

    def step_ms(name: str) -> list[float]:
        return [1000 / steps * max(each.processor_seconds for each in of) for of in figures[name][:whole]]

    note = "its batches lie in memory, ours are read and made"
    for ours in ("two ranks", "one process"):
        peer, what = f"TorchRec, {ours}", f"{ours}, DLRM, {layers} layers, d{_DIM}, batches of {BATCH:,}"
        run.report.compare(what, samples, peer, ours=ours, unit="k samples/s", scale=_SAMPLES, note=note)
        run.report.pairs(
            f"processor time of a step, {what}", step_ms(ours), step_ms(peer), peer, unit="ms", less_is_better=True
        )
    run.settle(samples)


def wires(run: Run, data: Path, cores: list[int]) -> None:
    """Compares AUC and speed of training in 16 bits with float32."""
    valid = run.work / "valid.parquet"
    write_clicks(valid, run.size(_VALID_ROWS, 20_000), seed=1)
    steps = _QUICK_STEPS if run.quick else 2 * _ROWS // BATCH
    groups = {wire: ranks("ours", data, BATCH, cores, wire=wire) for wire in ("fp32", "bf16", "fp16")}
    with started(run, groups):
        trained = {wire: group.ask(steps) for wire, group in groups.items()}
        aucs = {wire: group.ask(valid)[0] for wire, group in groups.items()}
    for wire in ("bf16", "fp16"):
        sent, whole = (sum(sum(each.sent.values()) for each in trained[name]) for name in (wire, "fp32"))
        run.report.pairs(
            f"AUC after {steps + RUN_UP} steps, training.wire {wire}", [aucs[wire]], [aucs["fp32"]], "fp32", unit="AUC",
            note=f"{sent / whole:.2f} of the bytes",
        )  # fmt: skip
        ours, exact = (
            [1000 * max(float(each.processor_seconds) for each in trained[name]) / steps] for name in (wire, "fp32")
        )
        run.report.pairs(
            f"processor time of a step, training.wire {wire}", ours, exact, "fp32", unit="ms", less_is_better=True
        )


if __name__ == "__main__":
    script("ranks")
