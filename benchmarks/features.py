"""Claims: features at the speed of memory. A request's fixed cost, an id, a value, beside a copy of the same bytes.

Requests come as the native server hands them on, one block of bytes each. Every figure is processor time of the one
thread that works, so that a busy machine disturbs it less. The copy moves the bytes of the columns once, in one call.

    python -m benchmarks.features            # about a minute
    python -m benchmarks.features --quick
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.dlrm_towers import DENSE, SPARSE
from benchmarks.dlrm_world import spec as dlrm_spec
from benchmarks.measure import Contestant, Samples
from storage.features import Column, FeatureEngine, FeatureSpec
from storage.features.flat import FlatColumns, Layout, flatten

BATCHES = (1, 64, 512)
TOGETHER = 32
ROWS = 512
# Bounds: microseconds of a run of one row, nanoseconds of an id that is only selected.
FIXED_US, SELECTED_NS = 5.0, 2.0
_BUCKETS = {"op": "hash", "buckets": 1_000_000}
_BOUNDARIES = [round(-2 + 0.4 * place, 1) for place in range(11)]
# name -> dtype, transforms, output of one feature over one column of ROWS values.
COLUMNS: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "ids as they are": ("INT64", [], "ids"),
    "hash to buckets": ("INT64", [_BUCKETS], "ids"),
    "hash to 63 bits": ("INT64", [{"op": "hash"}], "ids"),
    "vocabulary of 1,000": ("INT64", [{"op": "vocabulary", "values": list(range(0, 10_000, 10))}], "ids"),
    "bucketise by 11 boundaries": ("FP32", [{"op": "bucketise", "boundaries": _BOUNDARIES}], "ids"),
    "dense as it is": ("FP32", [], "dense"),
    "clip": ("FP32", [{"op": "clip", "min": -1, "max": 1}], "dense"),
    "affine": ("FP32", [{"op": "affine", "scale": 2, "shift": 1}], "dense"),
    "log": ("FP32", [{"op": "log"}], "dense"),
}


def measure(run: Run) -> None:
    """Measures requests of a DLRM, requests of 39 inputs, and single transforms."""
    for name, spec in ((f"{SPARSE} ids and {DENSE} values in 2 inputs", dlrm_spec()), ("39 inputs", single_inputs())):
        check_ids(spec)
        for batch in BATCHES:
            of_requests(run, f"{name}, {batch} rows", spec, [batch])
        of_requests(run, f"{name}, {TOGETHER} requests of 1 row", spec, [1] * TOGETHER)
    an_id(run)
    for name, (dtype, transforms, output) in COLUMNS.items():
        of_values(run, name, one_feature(dtype, transforms, output))


def single_inputs() -> FeatureSpec:
    """Returns the DLRM with an input of its own for each id and each value."""
    ids, values = [f"i{place}" for place in range(SPARSE)], [f"d{place}" for place in range(DENSE)]
    inputs = [{"name": name, "dtype": "INT64"} for name in ids] + [{"name": name, "dtype": "FP32"} for name in values]
    features = [{"name": name, "inputs": [name], "output": "ids", "table": name} for name in ids]
    features += [{"name": name, "inputs": [name], "output": "dense"} for name in values]
    return FeatureSpec.model_validate({"inputs": inputs, "features": features})


def one_feature(dtype: str, transforms: list[dict[str, Any]], output: str) -> FeatureSpec:
    """Returns a spec of one input and one feature."""
    feature = {"name": "f", "inputs": ["x"], "transforms": transforms, "output": output}
    if output == "ids":
        feature["table"] = "t"
    return FeatureSpec.model_validate({"inputs": [{"name": "x", "dtype": dtype}], "features": [feature]})


class Requests:
    """Random requests of a spec, each one block of bytes."""

    def __init__(self, spec: FeatureSpec, batches: list[int], *, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        places = {entry.name: place for place, entry in enumerate(spec.inputs)}
        self.made: list[tuple[FlatColumns, int]] = []
        #: The columns of the first request.
        self.columns: dict[str, Column] = {}
        layout: Layout | None = None
        for batch in batches:
            columns = {
                entry.name: Column(entry.dtype, batch, entry.width, _values(rng, entry.dtype, batch * entry.width))
                for entry in spec.inputs
            }
            code, data = flatten(columns, batch, places)
            layout = layout or Layout.parse(code, spec.inputs)
            self.columns = self.columns or columns
            self.made.append((FlatColumns(layout, np.frombuffer(data, np.uint8), batch), batch))
        self.bytes = sum(len(columns.data) for columns, _ in self.made)

    def copy(self) -> Callable[[], object]:
        """Returns a function that copies so many bytes."""
        source, target = np.ones(self.bytes, np.uint8), np.empty(self.bytes, np.uint8)
        return lambda: np.copyto(target, source)


def _values(rng: np.random.Generator, dtype: str, count: int) -> np.ndarray:
    if dtype == "INT64":
        return rng.integers(0, 10_000, count)
    return rng.standard_normal(count).astype(np.float32)


def check_ids(spec: FeatureSpec) -> None:
    """Raises AssertionError unless the ids of a request are those of its columns."""
    requests = Requests(spec, [7])
    found = FeatureEngine(spec).run_joined(requests.made).ids
    wanted = np.concatenate(
        [column.values.reshape(7, -1) for column in requests.columns.values() if column.dtype == "INT64"],  # type: ignore[union-attr]
        axis=1,
    )
    for bags, ids in zip(found.values(), wanted.T, strict=True):
        if not np.array_equal(bags.values, ids):
            raise AssertionError("the engine gave other ids than were put in: the figures would mean nothing")


def of_requests(run: Run, name: str, spec: FeatureSpec, batches: list[int]) -> None:
    """Measures one run over requests, with and without arrays for Python."""
    engine, requests = FeatureEngine(spec), Requests(spec, batches)

    def arrays() -> object:
        made = engine.run_joined(requests.made)
        return made.ids, made.dense

    samples = _costs(
        run,
        {
            "ours": lambda: engine.run_joined(requests.made),
            "arrays": arrays,
            "copy": requests.copy(),
        },
    )
    is_fixed = sum(batches) == 1
    _report(run, name, samples, "copy", target=None)
    if is_fixed:
        _report(run, f"{name}, fixed cost", samples, FIXED_US, target=1.0)
    _report(run, f"{name}, with arrays for Python", samples, "copy", ours="arrays", target=None)
    run.settle(samples)


def an_id(run: Run) -> None:
    """Measures an id that is only selected: a batch of 512 rows less one of 1 row, by id."""
    spec = dlrm_spec()
    engine, large, small = FeatureEngine(spec), Requests(spec, [ROWS]), Requests(spec, [1])
    samples = _costs(
        run,
        {"large": lambda: engine.run_joined(large.made), "small": lambda: engine.run_joined(small.made)},
    )
    samples.add("ours", lambda of: (of["large"] - of["small"]) * 1e3 / (SPARSE * (ROWS - 1)))
    _report(run, "an id of a DLRM that is selected", samples, SELECTED_NS, target=1.0, unit="ns")
    run.settle(samples)


def of_values(run: Run, name: str, spec: FeatureSpec) -> None:
    """Measures a value of one feature, without the fixed cost of a run, beside a copy of the column."""
    engine, large, small = FeatureEngine(spec), Requests(spec, [ROWS]), Requests(spec, [1])
    samples = _costs(
        run,
        {
            "large": lambda: engine.run_joined(large.made),
            "small": lambda: engine.run_joined(small.made),
            "copied": large.copy(),
            "copied one": small.copy(),
        },
    )
    samples.add("ours", lambda of: (of["large"] - of["small"]) * 1e3 / (ROWS - 1))
    samples.add("copy", lambda of: max(1e-3, (of["copied"] - of["copied one"]) * 1e3 / (ROWS - 1)))
    _report(run, f"a value: {name}", samples, "copy", target=None, unit="ns")
    run.settle(samples)


def _costs(run: Run, work: dict[str, Callable[[], object]]) -> Samples:
    """Measures the microseconds of processor time of a call of each."""
    return run.interleave({name: _cost(one, run.piece_s) for name, one in work.items()})


def _cost(work: Callable[[], object], piece_s: float) -> Contestant:
    def measured(_: int) -> float:
        calls, began = 0, time.thread_time_ns()
        while (taken := time.thread_time_ns() - began) < piece_s * 1e9:
            for _ in range(10):
                work()
            calls += 10
        return taken / calls / 1e3

    return measured


def _report(
    run: Run,
    claim: str,
    samples: Samples,
    against: str | float,
    *,
    target: float | None,
    ours: str = "ours",
    unit: str = "us",
) -> None:
    mine = samples.values(ours)
    is_bound = isinstance(against, float)
    run.report.pairs(
        claim,
        mine,
        [against] * len(mine) if isinstance(against, float) else samples.values(against),
        "bound" if is_bound else f"{against} of the same bytes",
        unit=unit,
        target=target,
        less_is_better=True,
        dropped=samples.dropped,
        disturbed=not samples.is_clean,
    )


if __name__ == "__main__":
    script("features")
