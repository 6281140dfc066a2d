"""A publisher of deltas killed at any of its steps leaves a whole delta or none, and the next one publishes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PUBLISHER = """
import os, signal, sys
from pathlib import Path
import numpy as np
from storage import DeltaTable, open_version, write_delta

version = open_version(Path(sys.argv[1]))
ids = np.arange(50)
table = DeltaTable("words", 4, ids, np.ones((50, 4), np.float32), np.zeros(50, np.uint8), ids + 1000)
weights = {name: tensor.numpy() for name, tensor in version.weights().items()}
golden = version.golden()


def publish(sequence, fatal):
    calls = 0

    def counted(real):
        def call(*arguments):
            nonlocal calls
            calls += 1
            if calls == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments)

        return call

    for name in ("fsync", "rename", "mkdir"):
        setattr(os, name, counted(getattr(os, name)))
    write_delta(
        version.path, snapshot=f"{sequence:032x}", base=version.snapshot, parent=version.snapshot,
        applies_to=[version.snapshot], from_sequence=0, sequence=sequence, tables=[table], weights=weights,
        weight_dtypes={}, golden=golden, outputs=version.manifest.graph.outputs,
    )


for step in range(1, 100):
    child = os.fork()
    if child == 0:
        publish(step, step)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print("done" if status == 0 else f"killed {os.WTERMSIG(status)}")
    if status == 0:
        break
"""


@pytest.mark.slow
def test_a_publisher_killed_at_any_step_leaves_a_whole_delta_or_none(tmp_path: Path) -> None:
    from storage import list_deltas, next_sequence, open_delta, open_version

    path = Path(shutil.copytree(ROOT / "model_repo" / "tiny", tmp_path / "tiny")) / "1"
    before = open_version(path).snapshot
    done = subprocess.run(
        [sys.executable, "-c", PUBLISHER, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    steps = done.stdout.split("\n")[:-1]
    # two folders made, one more at the first delta of all, five files, four folders forced, one rename
    assert steps == ["killed 9"] * (len(steps) - 1) + ["done"]
    assert len(steps) > 12
    deltas = list_deltas(path)
    # Whole are those killed behind the rename, and the last.
    assert deltas == [len(steps) - 2, len(steps) - 1, len(steps)]
    for sequence in deltas:
        delta = open_delta(path / "deltas" / f"{sequence:06d}")
        assert [len(shard.ids) for shard in delta.shards("words")] == [50]
    left = [entry.name for entry in (path / "deltas").iterdir() if entry.name not in {f"{n:06d}" for n in deltas}]
    assert all(name.startswith(".publish-") for name in left)
    assert next_sequence(path) == len(steps) + 1
    assert open_version(path).snapshot == before
