"""Claim: a dense graph costs at most two thirds of what the same module costs under plain torch, on one thread.

Publishes the DLRM of `dlrm_world` and the ranker of `ranking_world`, and runs their graphs by every runner, in float32
and in bfloat16, with 1, 8, 64 and 512 rows. Figures are microseconds of processor time a run, medians of repeats in
turn. `module` is the module itself in torch, as Triton's Python backend runs it. `limit` is the time that the graph's
products would take at the rate of a large matrix product of torch, one core.

    python -m benchmarks.dense_graph            # a minute
    python -m benchmarks.dense_graph --quick
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from benchmarks.dlrm_towers import DENSE, DIM, SPARSE, Towers
from benchmarks.dlrm_world import DlrmWorld
from benchmarks.machine import machine_line
from benchmarks.ranking_world import USERS, RankingWorld
from benchmarks.ranking_world import Towers as RankerTowers
from serving.pipeline.runners import RUNNERS
from storage.checkpoint import DenseGraph, open_version
from storage.checkpoint.graph_program import packed

SIZES = (1, 8, 64, 512)
# At most this share of the module's time.
TARGET = 0.67

Runs = Mapping[str, Callable[[], object]]


def processor_us(run: Callable[[], object], calls: int) -> float:
    """Returns the microseconds of this thread's processor time for a call."""
    began = time.thread_time_ns()
    for _ in range(calls):
        run()
    return (time.thread_time_ns() - began) / calls / 1000


def medians(runs: Runs, rows: int, repeats: int) -> dict[str, float]:
    """Returns the median of each, measured in turn."""
    calls = max(3, 1000 // rows)
    found: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        processor_us(run, 5)
    for _ in range(repeats):
        for name, run in runs.items():
            found[name].append(processor_us(run, calls))
    return {name: statistics.median(values) for name, values in found.items()}


def runs_of(graph: DenseGraph, rows: int, precision: str) -> dict[str, Callable[[], object]]:
    """Returns a call of each runner, with random inputs."""
    inputs = [0.3 * torch.randn(rows, *entry.shape[1:]) for entry in graph.inputs]
    arguments = graph.arguments(inputs)
    found: dict[str, Callable[[], object]] = {}
    for name, make in RUNNERS.items():
        forward = packed(make(graph.program.module), arguments)
        found[f"{name} {precision}"] = lambda forward=forward: forward(*arguments)  # type: ignore[misc]
    return found


def products(module: nn.Module, pairs: int = 0) -> int:
    """Returns the multiplications of a row: those of its linear layers, and of the pairs."""
    linear = sum(each.in_features * each.out_features for each in module.modules() if isinstance(each, nn.Linear))
    return linear + pairs * DIM


def peak_flops(repeats: int) -> float:
    """Returns the floating-point operations a second of a large matrix product."""
    size = 768
    matrix = torch.randn(size, size)
    return 2 * size**3 / (min(processor_us(lambda: matrix @ matrix, 2) for _ in range(repeats + 3)) / 1e6)


def measure(work: Path, repeats: int) -> dict[str, dict[int, dict[str, float]]]:
    """Returns the microseconds of each runner by model and rows."""
    DlrmWorld(work / "dlrm", work / "dlrm.safetensors")
    RankingWorld(work / "ranker", "ranker")
    dlrm, ranker = Towers().eval(), RankerTowers().eval()
    item = DIM * (SPARSE - USERS) + DENSE
    worlds: dict[str, tuple[nn.Module, int, Callable[[int], list[torch.Tensor]]]] = {
        "dlrm": (
            dlrm,
            products(dlrm, len(dlrm.pairs)),
            lambda rows: [torch.randn(rows, DENSE), torch.randn(rows, SPARSE, DIM)],
        ),
        "ranker": (
            ranker,
            products(ranker),
            lambda rows: [torch.randn(rows, DIM * (USERS + 1)), torch.randn(rows, item)],
        ),
    }
    flops = peak_flops(repeats)
    found: dict[str, dict[int, dict[str, float]]] = {}
    for name, (module, multiplications, inputs) in worlds.items():
        (version,) = (work / name / name).glob("1")
        graph = open_version(version).graph()
        lowered = graph.lowered("bf16")
        found[name] = {}
        for rows in SIZES:
            given = inputs(rows)
            runs: dict[str, Callable[[], object]] = {"module": lambda m=module, g=given: m(*g)}  # type: ignore[misc]
            runs |= runs_of(graph, rows, "fp32") | runs_of(lowered, rows, "bf16")
            with torch.inference_mode():
                found[name][rows] = medians(runs, rows, repeats)
            found[name][rows]["limit"] = 2 * multiplications * rows / flops * 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 repeats")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), 3 if options.quick else 11)
    print(machine_line())
    print("microseconds of processor time a run, one thread")
    for model, by_rows in figures.items():
        names = list(by_rows[SIZES[0]])
        print(f"{model:<8}{'rows':>6}" + "".join(f"{name:>14}" for name in names))
        for rows, values in by_rows.items():
            print(f"{'':<8}{rows:>6}" + "".join(f"{values[name]:>14.1f}" for name in names))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    worst = max(
        min(us for name, us in values.items() if name.endswith("fp32")) / values["module"]
        for by_rows in figures.values()
        for values in by_rows.values()
    )
    print(f"the best runner of fp32 takes at most {worst:.2f} of the module's time; the target is {TARGET:.2f}")
    if worst > TARGET and not options.quick:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
