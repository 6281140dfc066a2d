"""A process that dies at any step of a merge leaves a store at exactly one snapshot, which the store names."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from storage.specs import LookupSpec
from storage.tiers.tiered import MERGE_STEPS, TieredStore
from tests.support.storage.tier_rows import Delta, Rows, jagged

COUNT, DIM = 600, 4


def planted(generation: int, ids: np.ndarray) -> np.ndarray:
    return np.repeat(np.stack([np.full(len(ids), generation), ids % 1000], 1), DIM // 2, 1).astype(np.float32)


def version() -> Rows:
    ids = np.concatenate([[-(2**63), -1], np.arange(COUNT), [2**63 - 1]])
    return Rows({"t": (ids, planted(0, ids), np.zeros(len(ids), np.uint8))})


def held_by(generation: int) -> dict[int, np.ndarray]:
    """Returns the rows of a generation.

    Every row carries the generation's number; each generation adds three ids, and the next removes them.
    """
    ids = version().content["t"][0]
    if generation:
        ids = np.concatenate([ids, np.arange(COUNT * 2 + generation * 3, COUNT * 2 + generation * 3 + 3)])
    return dict(zip(ids.tolist(), planted(generation, ids), strict=True))


def delta_to(generation: int) -> Delta:
    rows, before = held_by(generation), held_by(generation - 1)
    ids = np.array(sorted(rows))
    gone = np.array(sorted(set(before) - set(rows)), np.int64)
    changed = (ids, np.array([rows[i] for i in ids.tolist()]))
    return Delta(f"{generation:032x}", {"t": changed}, {"t": gone}, shard_rows=100)


def generation_of(store: TieredStore, mask: int = 0) -> int:
    """Returns which snapshot the whole store holds; fails when the store holds a mixture."""
    generation = 0 if store.at == version().snapshot else int(store.at, 16)
    if mask:
        generation += mask.bit_count()
    asked = np.array(sorted(held_by(generation) | held_by(generation + 1) | held_by(max(0, generation - 1))))
    result = store.plan([LookupSpec("x", "t", "none", 1)]).lookup(
        len(asked), [jagged([[i] for i in asked.tolist()])], mask=mask
    )
    assert result.masks[0] is not None
    held = held_by(generation)
    assert result.masks[0][:, 0].tolist() == [int(i in held) for i in asked.tolist()]
    for i, row in zip(asked.tolist(), result.outputs[0][:, 0], strict=True):
        assert row.tolist() == (held[i].tolist() if i in held else [0.0] * DIM)
    return generation


CHILD = """
import os, signal, sys, threading, time
from pathlib import Path
from storage.tiers.tiered import TieredStore
from tests.integration.storage.test_tiered_crash import delta_to, version

folder, budget, spill, first, step, delay = sys.argv[1:]
with TieredStore.open(Path(folder), version().tables, dram_bytes=int(budget)) as store:
    store.load(version())
    if delay:
        def later():
            time.sleep(float(delay))
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Thread(target=later).start()
    def on_step(name):
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)
    for generation in range(int(first), int(first) + 50):
        number = store.stage(delta_to(generation), spill=bool(int(spill)))
        store.merge(number, at=f"{generation:032x}", markers={"generation": str(generation)}, on_step=on_step)
"""


def run_child(folder: Path, budget: int, spill: bool, first: int, step: str = "", delay: str = "") -> None:
    command = [sys.executable, "-c", CHILD, str(folder), str(budget), str(int(spill)), str(first), step, delay]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=root)
    assert done.returncode == -signal.SIGKILL, done.stderr


def reopened(folder: Path, budget: int) -> int:
    with TieredStore.open(folder, version().tables, dram_bytes=budget) as store:
        store.load(version())
        generation = generation_of(store)
        assert store.marker("generation") == (str(generation) if generation else None)
        # The chain continues.
        number = store.stage(delta_to(generation + 1))
        assert generation_of(store, 1 << number) == generation + 1
        store.discard(number)
    return generation


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "spill"), [(1 << 24, False), (5_000, True)])
def test_killed_at_each_step_of_a_merge(tmp_path: Path, budget: int, spill: bool) -> None:
    generation = 0
    for step in MERGE_STEPS:
        run_child(tmp_path / "s", budget, spill, generation + 1, step)
        after = reopened(tmp_path / "s", budget)
        assert after == generation + (step != "merge_file")
        generation = after
    assert not (tmp_path / "s" / "ingest").exists()


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path: Path) -> None:
    generation = 0
    rng = np.random.default_rng(0)
    for _ in range(4):
        run_child(tmp_path / "s", 5_000, bool(rng.integers(2)), generation + 1, delay=str(rng.uniform(0.0, 0.4)))
        after = reopened(tmp_path / "s", 5_000)
        assert after >= generation
        generation = after
    assert generation > 0
