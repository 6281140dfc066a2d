"""Starts the child processes that the DRAM benchmarks compare with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.catalog import Run
from benchmarks.peers import PeerMissingError, environment
from benchmarks.peers.process import HUGE_PAGES, PeerProcess


@contextmanager
def torch_children(run: Run) -> Iterator[tuple[PeerProcess, PeerProcess, PeerProcess | None]]:
    """Yields torch as it is, torch on 2 MB pages, and the environment with TorchRec and FBGEMM.

    The last is None where the environment is missing.
    """
    with ExitStack() as stack:
        plain = stack.enter_context(PeerProcess())
        huge = stack.enter_context(PeerProcess(settings=[HUGE_PAGES]))
        fbgemm: PeerProcess | None = None
        try:
            fbgemm = stack.enter_context(PeerProcess(python=environment.python()))
        except PeerMissingError as missing:
            run.report.remark(f"TorchRec and FBGEMM: {missing}")
        run.children.extend(process.pid for process in (plain, huge, fbgemm) if process is not None)
        yield plain, huge, fbgemm
