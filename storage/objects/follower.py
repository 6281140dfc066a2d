"""The threads that follow one model of an object store: one looks what is published, the other brings it.

So a long download keeps nobody from seeing what a fleet serves.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from storage.errors import EmberlineError, IntegrityError
from storage.objects.head import Head
from storage.objects.model_mirror import SIDE_S, ModelMirror
from storage.objects.requests import Stopped

logger = logging.getLogger("emberline.storage")

_RETRY_LAST_S = 30.0
#: Seconds between looks while something waits for what the others do, and how long that goes on before it is given up.
HURRY_S, HURRIES_S = 0.1, 30.0


@dataclass(frozen=True)
class Watch:
    """Whoever wants to know what is published. Both are called with the model's name."""

    #: Called with every new head, before anything of it is brought, and with the time, by time.monotonic, at which a
    #: look began that did not find it.
    on_head: Callable[[str, Head, float], None]
    #: Returns whether the next look is to come soon.
    hurries: Callable[[str], bool]
    #: Seconds between looks at most, also while the store does not answer.
    retry_last_s: float = _RETRY_LAST_S


UNWATCHED = Watch(lambda name, head, not_before: None, lambda name: False)


class Follower:
    """The threads of one model, from `start` until `end`."""

    def __init__(self, mirror: ModelMirror, name: str, poll_s: float, stop: threading.Event, watch: Watch) -> None:
        self.mirror = mirror
        #: Set when the first look and what it brings have ended, with or without success.
        self.tried = threading.Event()
        self._name = name
        self._poll_s = poll_s
        self._stop = stop
        self._watch = watch
        self._looking, self._bringing = threading.Lock(), threading.Lock()
        self._wake, self._news = threading.Event(), threading.Event()
        self._errors = {"look": "", "bring": ""}
        self._looked_at = -math.inf
        self._threads = [
            threading.Thread(target=self._looks, name=f"emberline-mirror-{name}", daemon=True),
            threading.Thread(target=self._brings, name=f"emberline-bring-{name}", daemon=True),
        ]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Waits for the threads, after the stop was set."""
        self.wake()
        self._news.set()
        for thread in self._threads:
            thread.join()

    def wake(self) -> None:
        """Looks at once, without waiting for it."""
        self._wake.set()

    def check(self) -> None:
        """Looks now, and returns when that is done; what is new comes afterwards."""
        self._look()

    def look(self, timeout_s: float) -> None:
        """Looks now, at the configuration too, and returns when what is new has come, or failed."""
        self._look()
        if self._bringing.acquire(timeout=timeout_s):
            try:
                self.mirror.expect_edits()
                self._bring()
            finally:
                self._bringing.release()

    def _looks(self) -> None:
        wait_s = 0.0
        hurried_at = None
        while not self._stop.is_set():
            # Before the look: a wake-up during it asks for another one.
            self._wake.clear()
            done = self._look()
            if not done and self.mirror.head is None:
                self.tried.set()
            wait_s = self._poll_s if done else min(self._watch.retry_last_s, max(self._poll_s, wait_s * 2))
            pause_s = wait_s
            if self._watch.hurries(self._name):
                hurried_at = hurried_at or time.monotonic()
                if time.monotonic() - hurried_at < HURRIES_S:
                    pause_s = min(pause_s, HURRY_S if done else self._poll_s)
            else:
                hurried_at = None
            self._wake.wait(pause_s)

    def _brings(self) -> None:
        wait_s = pause_s = 0.0
        self._news.wait()
        while not self._stop.is_set():
            self._news.clear()
            with self._bringing:
                done = self._bring()
            self.tried.set()
            wait_s = 0.0 if done else min(_RETRY_LAST_S, max(self._poll_s, wait_s * 2))
            pause_s = SIDE_S if done else wait_s
            self._news.wait(pause_s)

    def _look(self) -> bool:
        with self._looking:
            return self._try("look", self._look_once)

    def _look_once(self) -> None:
        before, self._looked_at = self._looked_at, time.monotonic()
        if self.mirror.look():
            assert self.mirror.head is not None
            self._watch.on_head(self._name, self.mirror.head, before)
            self._news.set()

    def _bring(self) -> bool:
        return self._try("bring", self.mirror.bring)

    def _try(self, what: str, work: Callable[[], object]) -> bool:
        """Does the work; returns whether it succeeded. A failure is logged when it is another one than before."""
        try:
            work()
        except Stopped:
            return False
        except Exception as error:
            text = str(error) or type(error).__name__
            if text != self._errors[what]:
                known = isinstance(error, EmberlineError)
                level = logging.ERROR if isinstance(error, IntegrityError) or not known else logging.WARNING
                logger.log(level, "%s: %s", self._name, text, exc_info=None if known else error)
            self._errors[what] = text
            return False
        self._errors[what] = ""
        return True
