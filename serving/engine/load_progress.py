"""Logs how far the load of a version's rows is."""

from __future__ import annotations

import logging
import time

from storage.tiers.tiered import LoadProgress

logger = logging.getLogger("emberline.serving")
_PROGRESS_SECONDS = 2.0


def log_progress(name: str) -> LoadProgress:
    """Returns a callable for `TieredStore.load` that logs every few seconds. name: model/version."""
    last = time.monotonic()

    def report(stage: str, table: str, done: int, rows: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _PROGRESS_SECONDS:
            last = time.monotonic()
            logger.info("%s: %s: table %s: %d of %d rows", name, stage, table, done, rows)

    return report
