"""Makes the event loop of a process that serves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

try:
    import uvloop
except ImportError:  # a platform without it; asyncio's own loop does the same, slower
    uvloop = None


def run_on_loop(work: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine on a new event loop, uvloop where there is one."""
    with asyncio.Runner(loop_factory=None if uvloop is None else uvloop.new_event_loop) as runner:
        runner.run(work)
