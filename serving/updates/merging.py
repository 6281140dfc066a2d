"""Merges the oldest overlays into the store in the background, once nobody can go back before them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from serving.updates.applying import collect_kept
from serving.updates.live_model import LiveModel, Stopped
from serving.updates.loading import DRAIN_S
from serving.updates.mount import LoadedVersion, MountedStore
from storage.errors import EmberlineError

logger = logging.getLogger("emberline.serving")

_RETRY_S = 5.0
# Number of snapshots that are kept unmerged, because a shadow is staged on what lies below them.
KEPT_FOR_SHADOW = 40
# Number of snapshots that may wait to be merged before merging them is more urgent than sparing the requests.
_PATIENT_MERGES = 3


def merge_loop(model: LiveModel, merged: Callable[[], None]) -> None:
    """Merges whatever may be merged, until the model stops; no error ends it. merged: called after each merge."""
    while not model.stopping.is_set():
        model.merge_wake.wait()
        model.merge_wake.clear()
        failure: Exception | None = None
        for mount in model.mounts:
            try:
                drop_left_behind(model, mount)
                while not model.stopping.is_set() and merge_oldest(model, mount):
                    merged()
            except Stopped:
                return
            except Exception as error:
                failure = error
        _note(model, failure)
        if failure is not None:
            if model.stopping.wait(_RETRY_S):
                return
            model.merge_wake.set()


def _note(model: LiveModel, failure: Exception | None) -> None:
    """Remembers why merging fails, for the index and the metrics; logs the first failure and the end."""
    if failure is None:
        if model.merge_trouble:
            logger.info("%s: snapshots are merged again", model.name)
        model.merge_trouble = ""
        return
    model.counters.merge_failures += 1
    text = f"merging snapshots into the store fails and is tried again: {str(failure) or type(failure).__name__}"
    if not model.merge_trouble:
        known = isinstance(failure, EmberlineError | OSError)
        logger.error("%s: %s", model.name, text, exc_info=None if known else failure)
    model.merge_trouble = text


def merge_oldest(model: LiveModel, mount: MountedStore) -> bool:
    """Merges the oldest snapshot of a mount into its base; False when nothing is to be merged."""
    with mount.merge_lock:
        with model.lock:
            if not _is_due(model, mount):
                return False
            if _shadow_floor(model, mount) == 0:
                end_shadow(model, f"{mount.view.served} snapshots came after what it was made from, and are merged")
            mount.merging = True
            base, oldest = mount.view.entries[0], mount.view.entries[1]
        try:
            _leave(model, mount)
            # The merge would take the rows of these snapshots away: wait for batches on the base, however old, and on
            # what was left behind.
            with model.lock:
                left = [entry.snapshot for entry in mount.left_behind]
            if not model.wait_released(mount, [base.snapshot, *left]):
                return False
            started = time.monotonic()
            if oldest.overlay is not None:
                full = _is_full(model, mount)
                mount.store.merge(
                    oldest.overlay, at=oldest.id, on_step=model.step, hurry=lambda: full or _is_behind(model, mount)
                )
            with model.lock:
                view = mount.view
                entries = (replace(oldest, overlay=None), *view.entries[2:])
                mount.view = replace(view, entries=entries, served=view.served - 1)
            if oldest.kind != "delta":  # a restart finds the version's rows, and what is merged on top later
                mount.store.adopt(oldest.loaded.published)
            with model.lock:
                if oldest.kind != "delta":
                    mount.content = oldest.saved
                model.write(model.facts, {}, model.mounts, model.default)
        finally:
            mount.merging = False
    model.counters.merges += 1
    logger.debug("%s: %s is merged (%.0f ms)", model.name, oldest.snapshot, (time.monotonic() - started) * 1e3)
    collect_kept(model)
    return True


def drop_left_behind(model: LiveModel, mount: MountedStore) -> None:
    """Drops those of the replaced snapshots that no batch uses any more."""
    if not mount.left_behind:
        return
    with mount.merge_lock:
        if mount.closed:
            return
        with model.lock:
            needed = {entry.loaded for entry in (*mount.view.entries, *mount.view.beside)}
        _end_versions(model, mount, [loaded for loaded in list(mount.loaded_versions.values()) if loaded not in needed])
        with model.lock:
            used = mount.in_use()
            free = [entry for entry in mount.left_behind if entry.snapshot not in used]
            mount.left_behind = tuple(entry for entry in mount.left_behind if entry.snapshot in used)
        for entry in free:
            if entry.overlay is not None:
                mount.store.discard(entry.overlay)
            logger.info("%s: dropped %s", model.name, entry.snapshot)


def _is_due(model: LiveModel, mount: MountedStore) -> bool:
    """Returns whether the oldest snapshot is to be merged. Call it under the lock."""
    view = mount.view
    if mount.closed or mount not in model.mounts or model.config is None or view.served == 0:
        return False
    if mount.store.ssd.damage.found:
        return False  # another store takes its place
    canary = model.canary_entry()
    if canary is not None and canary[0] is mount and view.find(canary[1].id) == 0:
        return False  # the base itself is on trial
    wanted = view.served > model.config.options.retain_snapshots or _is_full(model, mount)
    if _shadow_floor(model, mount) == 0:
        return wanted and (view.served > KEPT_FOR_SHADOW or _is_full(model, mount))
    return wanted


def _shadow_floor(model: LiveModel, mount: MountedStore) -> int | None:
    """Returns the position of the snapshot that the shadow is, or is staged on; what comes after cannot be merged."""
    running = model.shadow_entry()
    if running is None or running[0] is not mount:
        return None
    view = mount.view
    return view.entries.index(running[1]) if running[1] in view.entries else view.find(view.beside_on)


def end_shadow(model: LiveModel, reason: str) -> None:
    """Ends the shadow for a reason that `emberline snapshots` shows. Call it under the lock. Raises StoreError."""
    shadow = model.facts.shadow
    assert shadow is not None
    logger.warning("%s: the shadow %s ends: %s", model.name, shadow.to, reason)
    model.shadowing.ended = f"{shadow.to}: {reason}"
    model.commit(facts=model.facts.model_copy(update={"shadow": None}))


def _is_full(model: LiveModel, mount: MountedStore) -> bool:
    held = sum(stats.bytes for stats in mount.store.overlay_stats().values())
    return model.config is not None and held > model.config.options.overlay_bytes


def _is_behind(model: LiveModel, mount: MountedStore) -> bool:
    """Returns whether a merge must hurry: other snapshots wait behind it, or something waits for its end."""
    config = model.config
    if config is None or model.stopping.is_set() or mount not in model.mounts or mount.store.ssd.damage.found:
        return True
    return mount.view.served > config.options.retain_snapshots + _PATIENT_MERGES


def _leave(model: LiveModel, mount: MountedStore) -> None:
    """Ends the versions that no snapshot above the base belongs to: nobody can go back to them any more."""
    with model.lock:
        needed = {entry.loaded.version for entry in (*mount.view.entries[1:], *mount.view.beside)}
        leaving = [loaded for version, loaded in mount.loaded_versions.items() if version not in needed]
    _end_versions(model, mount, leaving)


def _end_versions(model: LiveModel, mount: MountedStore, leaving: Iterable[LoadedVersion]) -> None:
    """Drains versions and ends their sessions; late requests go to what is served."""
    successor = mount.view.current.loaded.model
    for loaded in leaving:
        loaded.model.hand_over(successor)
        while not loaded.model.close(DRAIN_S):
            model.check_stop()
        with model.lock:
            mount.loaded_versions.pop(loaded.version, None)
        logger.info("%s: version %d is closed", model.name, loaded.version)
