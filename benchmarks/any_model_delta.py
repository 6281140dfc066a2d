"""Claims: a plain torch module is refreshed by deltas: what finding and applying them costs, and what requests notice.

- difference: a table of a million rows of 64 floats, 1% changed, is compared with what is published, beside reading and
  checking both as published files.
- dense: a gigabyte of bfloat16 weights, 2% of the values changed, is written as a difference and applied.
- refresh: a DLRM of torch's own layers is refreshed under half of the load that it can take, and Triton loads the same
  model anew under half of what it can take. The p99 of the seconds after is compared with the p99 before.
- large: the same of ours beside a gigabyte of other weights, with the failed requests.

    python -m benchmarks.peers.triton_environment      # Triton, once
    python -m benchmarks.any_model_delta               # about 20 minutes
    python -m benchmarks.any_model_delta --only difference,dense
    python -m benchmarks.any_model_delta --quick
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.paced_load import PacedLoad, max_rate, save_bodies, window
from benchmarks.peers import PeerMissingError
from benchmarks.peers.triton import TritonServer, TritonSettings
from benchmarks.peers.triton_environment import TRITON
from benchmarks.plain_world import PlainWorld, change_values
from benchmarks.processes import family
from benchmarks.served_load import serve
from loadtest.bodies import binary_body
from storage import open_delta, open_version
from storage.checkpoint.as_of import find_as_of
from storage.checkpoint.fingerprint import weights_fingerprint
from storage.checkpoint.weight_difference import DIFFERENCE, write_difference
from storage.checkpoint.weights import bits, with_difference
from trainer.publishing import publish
from trainer.publishing.differences import difference
from trainer.publishing.embedding_layers import TableSource

PARTS = ("difference", "dense", "refresh", "large")
QUICK_S = 150.0
# The target of the comparison: 1.2 times the time of reading both.
_READING, _ROW_BYTES = 1 / 1.2, 1 / 1.05
_DENSE_SHARE, _APPLIED_S = 0.05, 1.0
_DIM = 64


def measure(run: Run) -> None:
    """Measures every part that is wanted."""
    for part, work in (("difference", _difference), ("dense", _dense), ("refresh", _refresh), ("large", _large)):
        if run.wants(part) and not run.is_late(part):
            work(run)


class _OneTable(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.items = nn.Embedding(rows, _DIM)
        self.top = nn.Linear(_DIM, 1)

    def forward(self, items: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"score": self.top(self.items(items))}


def _difference(run: Run) -> None:
    rows = run.size(1_000_000, 200_000)
    torch.manual_seed(0)
    module, sample = _OneTable(rows).eval(), {"items": torch.arange(256)}
    before, after = run.work / "before", run.work / "after"
    version = publish(module, sample, before, name="m")
    with torch.no_grad():
        module.items.weight[torch.randperm(rows)[: rows // 100]] *= 1.01
    other = publish(module, sample, after, name="m")
    source = TableSource("items", _DIM, weight=module.items.weight)

    def compared() -> int:
        snapshot = find_as_of(version.parent, verify=False)
        return len(difference([source], snapshot, {"items": "fp32"}, share=0.5, on_block=lambda: None).tables[0].ids)

    def read() -> int:
        # Each byte once: its digest, finite rows in their order, and the fingerprint of the table.
        both = [open_version(path, verify=False) for path in (version, other)]
        return sum(len(each.ids) for each_version in both for each in each_version.shards("items"))

    assert compared() == rows // 100
    ours: list[float] = []
    reading: list[float] = []
    for _ in range(3 if run.quick else max(5, run.repeats)):
        for work, seconds in ((compared, ours), (read, reading)):
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
    run.report.pairs(
        f"difference of {rows:,} rows, 1% changed", ours, reading, "reading both", unit="s", target=_READING,
        less_is_better=True,
    )  # fmt: skip
    began = time.perf_counter()
    delta = open_delta(publish(module, sample, before, name="m", delta="only"))
    took = time.perf_counter() - began
    sizes = {entry.path: entry.size for entry in delta.manifest.files}
    written = float(sum(size for path, size in sizes.items() if path.startswith(("tables/", "removed"))))
    wanted = float(rows // 100 * (4 * _DIM + 9))
    run.report.pairs(
        "bytes of its rows and removed ids", [written], [wanted], "ids, rows, uses", unit="bytes", target=_ROW_BYTES,
        less_is_better=True,
    )  # fmt: skip
    run.report.remark(
        f"the whole publication took {took:.2f} s; beside the rows, golden requests take "
        f"{sizes['golden.safetensors']:,} bytes, weights {sizes['dense.safetensors']:,}, and the manifest "
        f"{delta.size_bytes - sum(sizes.values()):,}"
    )


def _dense(run: Run) -> None:
    total = (64 << 20) if run.quick else 10**9
    if run.lacks_memory(5 * total, "dense"):
        return
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    before = {f"state.w{number}": torch.empty(total // 128).normal_(std=0.02).bfloat16() for number in range(64)}
    after = {name: value.clone() for name, value in before.items()}
    for value in after.values():
        change_values(value, rng)
    path = run.work / DIFFERENCE
    arrays = [{name: bits(value) for name, value in each.items()} for each in (before, after)]
    began = time.perf_counter()
    written = write_difference(path, *arrays)
    took = time.perf_counter() - began
    assert written is not None
    size = float(sum(value.nbytes for value in before.values()))
    what = f"{size / 1e9:.2g} GB of bfloat16, 2% of the values changed"
    run.report.pairs(
        f"{what}: bytes", [float(written.size)], [_DENSE_SHARE * size], "5% of all", unit="bytes", target=1.0,
        less_is_better=True,
    )  # fmt: skip
    wanted, seconds = weights_fingerprint(after), []
    for _ in range(3 if run.quick else max(5, run.repeats)):
        began = time.perf_counter()
        made = with_difference(path.read_bytes(), before)
        fingerprint = weights_fingerprint(made)
        seconds.append(time.perf_counter() - began)
        assert fingerprint == wanted
        del made
    bound = [_APPLIED_S * size / 1e9] * len(seconds)
    run.report.pairs(
        f"{what}: applied, with its digest", seconds, bound, "bound", unit="s", target=1.0, less_is_better=True
    )
    run.report.remark(f"writing the difference took {took:.2f} s on {os.cpu_count()} cores")


def _refresh(run: Run) -> None:
    """Measures both servers: quiet seconds, then a refresh each `every` seconds."""
    days, every = (2, 8.0) if run.quick else (5, 30.0)
    weights = run.work / "weights"
    world = PlainWorld(run.work / "source", weights, run.size(100_000, 10_000), days)
    bodies = run.work / "bodies.npz"
    save_bodies(bodies, [binary_body(world.request(64)) for _ in range(16)])
    ours = _ours(run, world, bodies, days, every)
    _report_p99(run, "ours, refreshed by a delta", ours)
    try:
        settings = TritonSettings(instances=1)
        with (
            TritonServer(run.work, weights / "0.safetensors", settings, reloads=True) as server,
            run.counted(*family(server.process.pid)),
        ):
            port = server.http_port
            theirs = _under_load(
                run, port, bodies, days, every, lambda day: server.reload(weights / f"{day}.safetensors")
            )
    except PeerMissingError as error:
        run.report.remark(f"left out: {error}")
        return
    _report_p99(run, f"Triton {TRITON}, loaded anew", theirs)
    run.report.pairs(
        "p99 of a refresh by its own quiet p99",
        [ours.share],
        [theirs.share],
        "triton",
        unit="times",
        less_is_better=True,
    )


def _large(run: Run) -> None:
    days, every = (2, 8.0) if run.quick else (5, 30.0)
    total = (64 << 20) if run.quick else 10**9
    if run.lacks_memory(8 * total, "large"):
        return
    world = PlainWorld(run.work / "large-source", None, run.size(10_000, 10_000), days, large=total // 2)
    bodies = run.work / "large-bodies.npz"
    save_bodies(bodies, [binary_body(world.request(64)) for _ in range(16)])
    sizes = [open_delta(path).size_bytes for path in world.published[1:]]
    found = _ours(run, world, bodies, days, every)
    _report_p99(run, f"ours with {total / 1e9:.2g} GB of weights", found)
    run.report.remark(f"deltas of {total:,} bytes of weights have {', '.join(f'{size:,}' for size in sizes)} bytes")


class _Refreshed:
    """The latencies of a server, quiet and around refreshes, and how long a refresh took until requests saw it."""

    def __init__(self, records: np.ndarray, quiet: tuple[float, float], moments: list[float], every: float) -> None:
        self.failed = int(np.count_nonzero(records["good"] == 0))
        self.requests = len(records)
        self.quiet_ms = float(np.percentile(window(records, *quiet)["ms"], 99))
        parts = [_waited(window(records, moment, moment + every), every) for moment in moments]
        self.refreshed_ms = float(np.percentile(np.concatenate(parts), 99))
        self.worst_ms = max(float(part.max()) for part in parts)
        self.took_s: list[float] = []
        self.rate = 0.0

    @property
    def share(self) -> float:
        """The p99 of the refreshed seconds by that of the quiet ones."""
        return self.refreshed_ms / self.quiet_ms


def _waited(records: np.ndarray, every: float) -> np.ndarray:
    """Returns the latencies in a window; one as long as the window where the server kept all from being sent."""
    return records["ms"] if len(records) else np.array([every * 1000])


def _report_p99(run: Run, what: str, found: _Refreshed) -> None:
    run.report.pairs(
        f"{what}: p99", [found.refreshed_ms], [found.quiet_ms], "its quiet p99", unit="ms", less_is_better=True
    )
    seconds = ", ".join(f"{each:.2f}" for each in found.took_s)
    run.report.remark(
        f"{what}: {found.failed} of {found.requests:,} requests failed at {found.rate:,.0f} requests/s of 64 rows; the "
        f"slowest took {found.worst_ms:,.1f} ms; refreshes were served after {seconds} s"
    )


def _ours(run: Run, world: PlainWorld, bodies: Path, days: int, every: float) -> _Refreshed:
    """Measures a server of ours, which gets the deltas one by one, each by a rename."""
    version, *deltas = world.published
    # What is served is the version; its deltas appear later, from the folder beside it.
    waiting = version.parent.with_name(f"{version.parent.name}.waiting")
    os.rename(version / "deltas", waiting)
    (version / "deltas").mkdir()

    with _server(run, version.parents[1]) as port:

        def refresh(day: int) -> None:
            name = deltas[day - 1].name
            os.rename(waiting / name, version / "deltas" / name)
            while _served_sequence(port) != day:
                time.sleep(0.02)

        return _under_load(run, port, bodies, days, every, refresh)


def _under_load(
    run: Run, port: int, bodies: Path, days: int, every: float, refresh: Callable[[int], None]
) -> _Refreshed:
    rate = 0.5 * max_rate(port, "dlrm", bodies, run.work / "most.npy", 1.0 if run.quick else 4.0)
    load = PacedLoad(port, "dlrm", rate, bodies, run.work / "load.npy").start()
    moments, took = [], []
    try:
        time.sleep(2.0)
        began = time.monotonic()
        time.sleep(every)
        ended = time.monotonic()
        for day in range(1, days + 1):
            moments.append(time.monotonic())
            refresh(day)
            took.append(time.monotonic() - moments[-1])
            time.sleep(max(0.0, moments[-1] + every - time.monotonic()))
    finally:
        records = load.stop()
    found = _Refreshed(records, (began, ended), moments, every)
    found.took_s, found.rate = took, rate
    return found


@contextlib.contextmanager
def _server(run: Run, repository: Path) -> Iterator[int]:
    config = 'backend: "emberline"\ndynamic_batching { }\ninstance_group [{ kind: KIND_CPU count: 1 }]\n'
    (repository / "dlrm" / "config.pbtxt").write_text(config)
    with serve(run, repository, run.work / f"store-{repository.name}", "dlrm") as served:
        yield served.http_port


def _served_sequence(port: int) -> int:
    url = f"http://127.0.0.1:{port}/v2/repository/models/dlrm/snapshots"
    with urllib.request.urlopen(url, timeout=30) as answer:
        state = json.load(answer)
    if state["quarantined"]:
        raise RuntimeError(f"a delta was refused: {state['quarantined']}")
    return int(state["served"]["sequence"])


if __name__ == "__main__":
    script("any_model_delta")
