"""Drives training_program.py: peers that train embeddings, or a DLRM around them.

K batches, T tables, B samples, D dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.catalog import Run
from benchmarks.measure import PIECE_S, Contestant
from benchmarks.peers import PeerMissingError, environment
from benchmarks.peers.process import ChildProgram, child_contestant

PROGRAM = Path(__file__).with_name("training_program.py")


class TrainingPeers(ChildProgram):
    """Trains one peer at a time: torch, and where `python` has them FBGEMM and TorchRec.

    Raises PeerMissingError when a peer cannot be built or does not answer in time.
    """

    def __init__(self, folder: Path, *, python: Path | None = None) -> None:
        super().__init__(PROGRAM, python=python)
        self._folder = folder
        self.has_fbgemm = python is not None

    def take(self, numbers: np.ndarray, dense: np.ndarray | None = None, labels: np.ndarray | None = None) -> None:
        """Passes batches: row numbers (K, T, B) int64, for a model dense values (K, B, C) and labels (K, B, 1)."""
        arrays = (
            {"numbers": numbers}
            if dense is None or labels is None
            else {
                "numbers": numbers,
                "dense": dense,
                "labels": labels,
            }
        )
        path = self._folder / f"batches-{self.pid}.npz"
        np.savez(path, **arrays)  # type: ignore[arg-type]
        try:
            self.ask(do="batches", path=str(path))
        finally:
            path.unlink()

    def build(
        self,
        kind: str,
        *,
        optimizer: str,
        lr: float,
        eps: float,
        rows: int,
        dim: int,
        model: dict[str, np.ndarray] | None = None,
    ) -> str:
        """Builds a peer in place of the one before; returns its version. model: dense weights of a DLRM."""
        path = self._folder / f"model-{self.pid}.npz"
        if model is not None:
            np.savez(path, **model)  # type: ignore[arg-type]
        try:
            answer = self.ask(
                do="build",
                kind=kind,
                optimizer=optimizer,
                lr=lr,
                eps=eps,
                rows=rows,
                dim=dim,
                model="" if model is None else str(path),
            )
        finally:
            path.unlink(missing_ok=True)
        return str(answer["version"])

    def drop(self) -> None:
        """Frees the peer's memory."""
        self.ask(do="drop")

    def steps(self, count: int) -> list[float]:
        """Trains the first batches, at most 16; returns the losses of a model, zeros without one."""
        return list(self.ask(do="run", first=0, times=count, cores=1)["losses"])

    def rows(self, index: int) -> np.ndarray:
        """Returns the rows (T, B, D) of a batch as they are now."""
        path = self._folder / f"rows-{self.pid}.npy"
        self.ask(do="rows", index=index, path=str(path))
        rows: np.ndarray = np.load(path, allow_pickle=False)
        path.unlink()
        return rows

    def contestant(self, samples: int, cores: int, *, piece_s: float = PIECE_S, run_up_s: float = 0.0) -> Contestant:
        """Measures samples a second, of so many in a batch, on so many cores."""

        def work(first: int, times: int) -> float:
            return float(self.ask(do="run", first=first, times=times, cores=cores)["seconds"])

        return child_contestant(work, samples, piece_s=piece_s, run_up_s=run_up_s)


@contextmanager
def training_peers(run: Run) -> Iterator[TrainingPeers]:
    """Yields the peers: with FBGEMM and TorchRec if they are installed, else torch alone, and a remark says so."""
    try:
        python = environment.python()
    except PeerMissingError as missing:
        run.report.remark(f"TorchRec and FBGEMM: {missing}")
        python = None
    with TrainingPeers(run.work, python=python) as peers, run.counted(peers.pid):
        yield peers
