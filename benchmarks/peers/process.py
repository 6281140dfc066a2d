"""Drives a program in a child process, which has other packages, other allocator settings and its own memory."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from benchmarks.measure import PIECE_S, Contestant, run_up_times
from benchmarks.peers import PeerMissingError

PROGRAM = Path(__file__).with_name("torch_program.py")
# Makes glibc ask for 2 MB pages for the memory that malloc maps.
HUGE_PAGES = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"
_ANSWER_S = 300.0


def child_contestant(
    work: Callable[[int, int], float], amount: float, *, piece_s: float = PIECE_S, run_up_s: float = 0.0
) -> Contestant:
    """Returns a contestant like `measure.per_second` for work that a child times.

    work: called with the number of the first call and the number of calls, gives the seconds that they took.
    """
    state = {"next": 0, "times": 0}

    def run(turn: int) -> float:
        if turn == 0 or state["times"] == 0:  # the warm-up determines how many calls fit
            work(0, 3)
            once = work(3, 3) / 3
            state["next"], state["times"] = 6, max(1, min(5000, round(piece_s / max(once, 1e-6))))
        if run_up := run_up_times(state["times"], piece_s, run_up_s):
            work(state["next"], run_up)
            state["next"] += run_up
        seconds = work(state["next"], state["times"])
        state["next"] += state["times"]
        return state["times"] * amount / seconds

    return run


class ChildProgram:
    """Runs a program that answers a line of JSON with another; a context manager. It loads its packages meanwhile.

    Raises PeerMissingError when the program does not answer in time, or answers with an error.
    """

    def __init__(self, program: Path, *, python: Path | None = None, settings: Sequence[str] = ()) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            # -P: without it "import triton" inside torch finds the file of that name that lies beside the program.
            ["env", *settings, str(python or sys.executable), "-P", "-u", str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # we handle Ctrl-C
        )

    @property
    def pid(self) -> int:
        """The child's process id, so that the gauge counts it as ours."""
        return self._process.pid

    def close(self) -> None:
        """Ends the process."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it is gone already
                self._process.stdin.close()
        try:
            self._process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, **order: Any) -> dict[str, Any]:
        """Sends an order and returns the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerMissingError(self._last_words()) from error
        if not select.select([self._process.stdout], [], [], _ANSWER_S)[0]:
            self._process.kill()
            raise PeerMissingError(f"no answer to {order['do']!r} in {_ANSWER_S:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise PeerMissingError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerMissingError(str(answer["error"]))
        return answer

    def _last_words(self) -> str:
        self._process.wait(timeout=10.0)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"ended with {self._process.returncode}: {lines[-1] if lines else 'no message'}"


class PeerProcess(ChildProgram):
    """Runs torch_program.py. Raises PeerMissingError also when a peer cannot be built."""

    def __init__(self, *, python: Path | None = None, settings: Sequence[str] = ()) -> None:
        super().__init__(PROGRAM, python=python, settings=settings)

    def build(self, kind: str, *, rows: int, dim: int, tables: int = 1) -> str:
        """Builds a peer whose rows all hold ones; returns its version. rows: of each table."""
        return str(self.ask(do="build", kind=kind, rows=rows, dim=dim, tables=tables)["version"])

    def drop(self, kind: str) -> None:
        """Frees a peer's memory."""
        self.ask(do="drop", kind=kind)

    def take(self, name: str, numbers: np.ndarray, folder: Path, *, per_bag: int = 1) -> None:
        """Passes batches (K, n) int64 of row numbers to the child under a name."""
        path = folder / f"{name}-{self.pid}.npy"
        np.save(path, np.ascontiguousarray(numbers))
        try:
            self.ask(do="batches", name=name, path=str(path), per_bag=per_bag)
        finally:
            path.unlink()

    def contestant(
        self, kind: str, name: str, ids_of_batch: int, *, piece_s: float = PIECE_S, run_up_s: float = 0.0
    ) -> Contestant:
        """Measures ids a second of a peer over batches that were passed before; `per_second` explains the times."""
        return child_contestant(
            lambda first, times: self._run(kind, name, first, times), ids_of_batch, piece_s=piece_s, run_up_s=run_up_s
        )

    def output_sum(self, kind: str, name: str, index: int) -> float:
        """Returns the sum of a batch's outputs, where every value of every row is 1."""
        return float(self.ask(do="sum", kind=kind, name=name, index=index)["sum"])

    def _run(self, kind: str, name: str, first: int, times: int) -> float:
        return float(self.ask(do="run", kind=kind, name=name, first=first, times=times)["seconds"])
