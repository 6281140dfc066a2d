"""Trains on a stream as its rows come, publishes when the policy says so, and ends when it is asked to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from storage.data.streams import JoinedSource, StreamSource
from trainer.checkpoint import UpdateState, checkpoints, read_state
from trainer.follow_flow import FollowFlow, Idle, Taken
from trainer.follow_ranks import SharedFlow
from trainer.interrupts import noticed_interrupts
from trainer.loop import TrainingLoop
from trainer.progress import Display
from trainer.report import FollowReport

# Seconds between two lines about the progress.
_LINE_S = 10.0
# Seconds after which the rows for golden requests are replaced by newer ones.
_RENEW_S = 600.0
# Seconds between two looks for what no commit needs any more.
_UPKEEP_S = 30.0


class FollowPass:
    """One pass over a stream. until_idle: ends it when nothing has come for so many seconds; None: never.

    name, source: those of the stream, which the first rank alone has. joined: the stream, where labels are joined to
    its rows. renew: is called now and then behind a publish, to keep newer rows for golden requests.
    """

    def __init__(
        self,
        loop: TrainingLoop,
        flow: FollowFlow | SharedFlow,
        name: str,
        source: StreamSource | None,
        display: Display,
        until_idle: float | None,
        joined: JoinedSource | None = None,
        renew: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._flow = flow
        self._name = name
        self._source = source
        self._display = display
        self._until_idle = until_idle
        self._joined = joined
        if joined is not None:
            loop.before_commit = joined.sync
        self._stop = threading.Event()
        self._renew = renew
        self._kept_at = self._renewed_at = time.monotonic()
        self._line_at = self._came_at = time.monotonic()
        self._line_rows = loop.position.rows

    def run(self, update: UpdateState) -> None:
        """Trains until Ctrl-C, SIGTERM or the end by idleness; then publishes and commits what is trained."""
        loop = self._loop
        loop.update = update
        loop.model.train()
        self._display.begin(f"update {update.number}", None, loop.position.batch)
        self._begin_at, self._seconds = time.monotonic(), loop.position.seconds
        with noticed_interrupts(self._stop):
            with self._flow.ahead() as items:
                for item in loop.stages.timed("wait", items):
                    if isinstance(item, Taken):
                        self._train(item)
                        self._came_at = time.monotonic()
                    elif self._is_over(item):
                        break
                    if self._stops:
                        break
                    self._say()
                    if time.monotonic() - self._kept_at >= _UPKEEP_S:
                        self._remove_joined()
            loop.end_update()
            self._remove_joined()

    def report(self) -> FollowReport:
        """Returns how far the stream has been followed, with the speed since the line before. Of the first rank."""
        assert self._source is not None
        waiting, unit = self._source.waiting()
        seconds = max(time.monotonic() - self._line_at, 1e-9)
        newest_ms = self._loop.freshness.newest_unix_ms["trained"]
        age = time.time() - newest_ms / 1000 if newest_ms else None
        return FollowReport(
            self._name,
            waiting,
            unit,
            (self._loop.position.rows - self._line_rows) / seconds,
            age,
            self._loop.freshness.seconds(),
            {} if self._joined is None else self._joined.figures,
        )

    @property
    def _stops(self) -> bool:
        """True when a rank was asked to stop."""
        return bool(self._loop.ranks.largest(self._stop.is_set()))

    def _train(self, taken: Taken) -> None:
        loop = self._loop
        for batch, position in zip(loop.with_rows(taken.batches), taken.positions, strict=True):
            began = time.perf_counter()
            loop.rank_times.begin()
            loop.take(batch, self._seconds + time.monotonic() - self._begin_at)
            loop.rank_times.end()
            loop.streams = {**loop.streams, self._name: position}
            loop.freshness.reached("trained")
            if loop.publish_or_save() and time.monotonic() - self._renewed_at >= _RENEW_S:
                self._renew()
                self._renewed_at = time.monotonic()
            loop.stages.step(time.perf_counter() - began)
            if self._stops:
                return

    def _is_over(self, idle: Idle) -> bool:
        """Publishes what is due although nothing comes; returns whether the pass ends."""
        loop = self._loop
        if loop.is_due and idle.rest:
            self._flow.take_rest()
        elif loop.is_due and loop.position.step > loop.position.published_step:
            loop.publish()
        if idle.is_expecting:
            self._came_at = time.monotonic()
            return False
        waited = loop.ranks.from_first(time.monotonic() - self._came_at)  # all ranks end together
        if self._until_idle is None or waited < self._until_idle:
            return False
        if idle.rest:
            self._flow.take_rest()
        return not idle.rest

    def _remove_joined(self) -> None:
        """Removes the events that waited for their labels once and are needed by no commit."""
        self._kept_at = time.monotonic()
        commit, name = self._loop.checkpoint, self._name
        if self._joined is not None and commit is not None:
            known = [read_state(folder).streams for folder in checkpoints(commit.parent.parent)]
            self._joined.remove_others(streams[name]["at"] for streams in known if name in streams)

    def _say(self) -> None:
        now = time.monotonic()
        if self._source is None or now - self._line_at < _LINE_S or self._loop.position.rows == self._line_rows:
            return
        report = self.report()
        self._loop.track.follow(self._loop.position.step, report)
        self._display.say(f"{time.strftime('%H:%M:%S')} {self._loop.position.rows:,} rows, {report.text()}")
        self._line_at, self._line_rows = now, self._loop.position.rows
