"""Replaces a store that turns out to be damaged while it is served, at the same snapshots.

Requests that need the damaged part fail meanwhile with the reason; all others are answered.
"""

from __future__ import annotations

import logging
import time

from serving.updates.agreement import Outdated
from serving.updates.budgets import wait_filled
from serving.updates.live_model import LiveModel, Stopped
from serving.updates.loading import DRAIN_S, free_folder, unmount
from serving.updates.mount import MountedStore
from serving.updates.replacing import remove_stores, retire
from serving.updates.restoring import rebuilt_mount
from storage.errors import EmberlineError

logger = logging.getLogger("emberline.serving")

_RETRY_FIRST_S = 1.0
_RETRY_LAST_S = 60.0


class Mending:
    """Replaces the damaged stores of one model.

    Not thread-safe: the thread that takes the model's updates uses it.
    """

    def __init__(self, model: LiveModel) -> None:
        self._model = model
        self._told: MountedStore | None = None
        self._retry_s = 0.0
        self._not_before = 0.0

    def mend(self) -> None:
        """Replaces the stores that are damaged now. What fails is tried again at a later call, ever less often."""
        model = self._model
        for mount in model.mounts:
            if not mount.store.ssd.damage.found or time.monotonic() < self._not_before:
                continue
            if self._told is not mount:
                logger.error("%s: %s", model.name, model.damage)
                self._told = mount
            try:
                replace_damaged(model, mount)
            except Stopped:
                return
            except Exception as error:
                self._retry_s = min(_RETRY_LAST_S, max(_RETRY_FIRST_S, self._retry_s * 2))
                self._not_before = time.monotonic() + self._retry_s
                self._note(error)
            else:
                self._retry_s, model.mend_trouble = 0.0, ""

    def _note(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if text != self._model.mend_trouble:
            known = isinstance(error, EmberlineError | OSError | Outdated)
            logger.error("%s: cannot be replaced yet: %s", self._told and self._told.folder, text, exc_info=not known)
        self._model.mend_trouble = text


def replace_damaged(model: LiveModel, mount: MountedStore) -> None:
    """Fills a store beside a damaged one, stages what that one had staged, and moves the requests over."""
    config = model.config
    assert config is not None
    started = time.monotonic()
    # A running merge moves the base, and what led to the base before it is deleted then. No other merge begins.
    with mount.merge_lock, model.lock:
        state = mount.state()
        recent = mount.view.current.loaded.model.recent
    folder = free_folder(model, state.content)
    fresh = rebuilt_mount(model, config, state.model_copy(update={"folder": folder.name}), recent)
    fresh.is_hidden = mount.is_hidden
    try:
        model.budget.serve(fresh.store)
        wait_filled(fresh.store, model.check_stop)
        with model.lock:
            names = [entry.id for entry in mount.view.entries]
            if mount not in model.mounts or names[-len(fresh.view.entries) :] != [e.id for e in fresh.view.entries]:
                raise Outdated("what the store holds has changed meanwhile")
            # An operator may have gone back or forth among them.
            position = fresh.view.find(mount.view.current.id)
            if position is None:
                raise Outdated(f"{mount.view.current.name} is served again, which cannot be reached")
            fresh.view = fresh.view.at(position)
            model.commit(
                mounts=[fresh if each is mount else each for each in model.mounts],
                default=fresh if model.default is mount else model.default,
            )
    except BaseException:
        unmount(model, fresh, DRAIN_S)
        if not model.stopping.is_set():
            remove_stores(model)
        raise
    model.counters.stores_rebuilt += 1
    logger.info(
        "%s: the store %s took the place of the damaged %s after %.1f s, at %s",
        model.name,
        fresh.folder,
        mount.folder.name,
        time.monotonic() - started,
        fresh.view.current.snapshot,
    )
    retire(model, [mount], {loaded.version: loaded.model for loaded in fresh.loaded_versions.values()})
