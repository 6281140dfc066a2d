"""Starts and ends sessions while the load changes, for the models whose options say so."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from serving.engine.endpoint import Endpoint
from serving.engine.model import LoadedModel
from serving.engine.session_scaling import LOOK_S, SessionScaling, Work
from serving.updates.live_model import LiveModel
from storage.errors import DeviceError

logger = logging.getLogger("emberline.serving")


class SessionScaler:
    """Looks at the models twice a second, on a thread of its own."""

    def __init__(self, models: Callable[[], Iterable[LiveModel]]) -> None:
        """models: returns those that there are now."""
        self._models = models
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="emberline-scaling", daemon=True)

    def start(self) -> None:
        """Starts to look."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, after the sessions that it is starting now; it may not have been started."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Looks at each version once."""
        for model in self._models():
            for loaded in list(model.routes.by_version.values()):
                if loaded.scaling is None or model.stopping.is_set():
                    continue
                with model.lock:  # an operator may fix the number meanwhile
                    if not model.has_fixed_sessions:
                        _scale(loaded, loaded.scaling)

    def _run(self) -> None:
        while not self._ending.wait(LOOK_S):
            try:
                self.look()
            except Exception:  # a bug must not leave the sessions at the number of this moment
                logger.exception("the number of sessions was not looked at")


def work_of(endpoint: Endpoint) -> Work:
    """Returns what the sessions of a version have done until now, for both arms."""
    arms = endpoint.arms.values()
    waits = [arm.stages["queue"] for arm in arms]
    return Work(
        time.monotonic_ns(),
        sum(each.count for each in waits),
        sum(each.ns for each in waits),
        sum(arm.inference_count for arm in arms),
        sum(arm.execution_count for arm in arms),
        sum(sum(ns for part, ns in arm.parts.items() if part != "ssd_read") for arm in arms),
        endpoint.queued,
    )


def _scale(loaded: LoadedModel, scaling: SessionScaling) -> None:
    before = loaded.sessions
    count = scaling.look(work_of(loaded), before)
    if count == before:
        return
    label = f"{loaded.name}/{loaded.version}"
    assert scaling.last is not None
    logger.info("%s: %d session(s) instead of %d: %s", label, count, before, scaling.last.reason)
    try:
        loaded.resize(count)
    except DeviceError as error:
        logger.warning("%s: %d session(s): no more could be started: %s", label, loaded.sessions, error)
        scaling.failed(loaded.sessions, error)
