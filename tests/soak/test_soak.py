"""The short form of the soak; `make soak` runs it for ten minutes."""

from __future__ import annotations

from pathlib import Path

from tests.soak.store import Soak

SECONDS = 15.0


def test_every_row_is_its_snapshots_own_and_nothing_grows(tmp_path: Path) -> None:
    soak = Soak(tmp_path / "store")
    soak.run(SECONDS)
    for what in ("lookups", "deltas", "merges", "rollbacks", "reopened", "budget changes", "folds"):
        assert soak.counts[what] > 0, f"no {what}: {soak.counts}"
