"""Records refused versions and deltas, which are not tried again while they stay the same.

The reason is recorded, and requests that wait for them fail with it. Only what was read and judged is refused; a fault
of the machine is no reason (`faults`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from serving.updates.catalog import Catalog, Found
from serving.updates.live_model import LiveModel
from serving.updates.stamps import FilesStamp, stamp_of
from serving.updates.state import MAX_QUARANTINE, Refusal
from storage.errors import EmberlineError, IntegrityError, UnsafeArtifact

logger = logging.getLogger("emberline.serving")

# Milliseconds before a folder that is being written is read again.
_PAUSE_MS = 1000


def is_refused(model: LiveModel, found: Found) -> bool:
    """Returns whether this version or delta is quarantined. Raises OSError when its files cannot be looked at."""
    refusal = model.facts.quarantine.get(found.key)
    if refusal is None:
        return False
    # Other bytes under the same manifest may be the right ones.
    if not refusal.stamp or stamp_of(found).is_recorded(refusal.stamp):
        return True
    return 0 <= _now_ms() - refusal.unix_ms < _PAUSE_MS


def quarantine(model: LiveModel, found: Found, error: Exception, stamp: FilesStamp) -> bool:
    """Refuses a version or delta until its files change. An error that is no EmberlineError is logged with a traceback.

    stamp: stamp of its files, taken before they were read: later writes may have repaired them. Where files are missing
    or wrong and some were written just now, the folder is probably being copied: that is no error yet, and it is judged
    again once it rests. Returns whether it is refused for good.
    """
    reason = str(error) or type(error).__name__
    is_partial = stamp.moving and isinstance(error, IntegrityError | UnsafeArtifact)
    if is_partial:
        if all(refusal.path != str(found.path) for refusal in model.facts.quarantine.values()):
            logger.info("%s: %s is UNAVAILABLE while it is being written: %s", model.name, found.name, reason)
    else:
        logger.error(
            "%s: %s is UNAVAILABLE, refused (%s): %s",
            model.name,
            found.name,
            type(error).__name__,
            reason,
            exc_info=None if isinstance(error, EmberlineError) else error,
        )
    refusal = Refusal(
        path=str(found.path),
        snapshot=found.snapshot,
        reason=reason,
        kind=type(error).__name__,
        unix_ms=_now_ms(),
        stamp=stamp.recorded(until_rest=is_partial),
    )
    with model.lock:
        # A refusal that replaces an earlier one goes to the end: `snapshots` shows the newest last.
        refused = {**model.facts.quarantine, found.key: refusal}
        for key in set(refused) - set(without(refused, found)) - {found.key}:
            del refused[key]
        while len(refused) > MAX_QUARANTINE:
            del refused[next(iter(refused))]
        model.keep_facts(model.facts.model_copy(update={"quarantine": refused}))
    if not is_partial:
        count(model, error)
        model.refuse_waiters(filter(None, (found.snapshot, found.name)), f"it is refused: {reason}")
    return not is_partial


def without(quarantine: Mapping[str, Refusal], found: Found) -> dict[str, Refusal]:
    """Returns the refusals without those of a version or delta, or of what was in its place before."""
    return {key: refusal for key, refusal in quarantine.items() if key != found.key and refusal.path != str(found.path)}


def count(model: LiveModel, error: Exception) -> None:
    """Counts a refusal by the kind of its error."""
    refused = model.counters.refused
    refused[type(error).__name__] = refused.get(type(error).__name__, 0) + 1


def forget_gone(model: LiveModel, catalog: Catalog) -> None:
    """Forgets refusals of what has left the folder, and versions that waited for `allow` and were replaced."""
    for number, awaiting in list(model.awaiting.items()):
        found = catalog.versions.get(number)
        if found is None or found.key != awaiting.key:
            del model.awaiting[number]
    forget(model, lambda refusal: not Path(refusal.path).exists())


def forget(model: LiveModel, gone: Callable[[Refusal], bool]) -> bool:
    """Forgets the refusals for which `gone` is true, so that they are tried again; returns whether there were any."""
    with model.lock:
        kept = {key: refusal for key, refusal in model.facts.quarantine.items() if not gone(refusal)}
        if len(kept) == len(model.facts.quarantine):
            return False
        model.keep_facts(model.facts.model_copy(update={"quarantine": kept}))
        return True


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def refuse(model: LiveModel, found: Found, error: Exception, stamp: FilesStamp) -> None:
    """Quarantines something that was published, and says so to the other replicas."""
    if quarantine(model, found, error, stamp):
        model.agreement.refuse(found.snapshot, error)
