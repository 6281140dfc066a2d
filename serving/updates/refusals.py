"""What is refused: recorded with its reason, told to who waits for it, not tried again while it is the same."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from serving.updates.catalog import Catalog, Found, files_stamp
from serving.updates.live_model import LiveModel
from serving.updates.state import MAX_QUARANTINE, Refusal
from storage.errors import EmberlineError, IntegrityError

logger = logging.getLogger("emberline.serving")


def is_refused(model: LiveModel, found: Found) -> bool:
    """Whether this version or delta is quarantined."""
    refusal = model.facts.quarantine.get(found.key)
    # Other bytes under the same manifest may be the right ones.
    return refusal is not None and (not refusal.stamp or refusal.stamp == files_stamp(found.path))


def quarantine(model: LiveModel, found: Found, error: Exception) -> None:
    """Refuses a version or delta for good. What is no error of ours is logged with its traceback."""
    known = isinstance(error, EmberlineError)
    reason = str(error) or type(error).__name__
    logger.error(
        "%s: %s is UNAVAILABLE, refused (%s): %s",
        model.name,
        found.name,
        type(error).__name__,
        reason,
        exc_info=None if known else error,
    )
    refusal = Refusal(
        path=str(found.path),
        snapshot=found.snapshot,
        reason=reason,
        kind=type(error).__name__,
        unix_ms=time.time_ns() // 1_000_000,
        stamp=files_stamp(found.path) if isinstance(error, IntegrityError) else "",
    )
    with model.lock:
        refused = dict(model.facts.quarantine)
        refused.pop(found.key, None)
        refused[found.key] = refusal
        while len(refused) > MAX_QUARANTINE:
            del refused[next(iter(refused))]
        model.keep_facts(model.facts.model_copy(update={"quarantine": refused}))
    count(model, error)
    model.refuse_waiters(filter(None, (found.snapshot, found.name)), f"it is refused: {reason}")


def count(model: LiveModel, error: Exception) -> None:
    """Counts a refusal by the kind of its error."""
    refused = model.counters.refused
    refused[type(error).__name__] = refused.get(type(error).__name__, 0) + 1


def forget_gone(model: LiveModel, catalog: Catalog) -> None:
    """Forgets refusals of what has left the folder, and waits for versions that have."""
    for version in [version for version in model.awaiting if version not in catalog.versions]:
        del model.awaiting[version]
    forget(model, lambda refusal: not Path(refusal.path).exists())


def forget(model: LiveModel, gone: Callable[[Refusal], bool]) -> bool:
    """Forgets the refusals of which this is so; they are tried again. Returns whether there were any."""
    with model.lock:
        kept = {key: refusal for key, refusal in model.facts.quarantine.items() if not gone(refusal)}
        if len(kept) == len(model.facts.quarantine):
            return False
        model.keep_facts(model.facts.model_copy(update={"quarantine": kept}))
        return True
