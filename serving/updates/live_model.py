"""One model while it is updated: its stores, what its state file says, and the pointers that requests follow.

Whatever changes what is served goes through `commit`: first the state file, then the pointers. The lock is held for
short times only, never while something is read, staged or scored, so an operator's call does not wait for an update.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from serving.config import ServerConfig
from serving.engine.canary import routing_point
from serving.engine.core_shares import CoreShares
from serving.engine.model import LoadedModel
from serving.gpu.card_tables import prepare_cards
from serving.gpu.driver import Gpus
from serving.model_config.pbtxt import ModelConfig
from serving.pipeline.snapshot import Snapshot
from serving.updates.attempts import Attempts
from serving.updates.budgets import DramBudget
from serving.updates.counters import UpdateCounters
from serving.updates.line import Lane, LineView, StagedSnapshot, StoreLine
from serving.updates.state import MAX_REMEMBERED, ModelState
from serving.updates.state_file import StateFile
from serving.updates.steps import OnStep, check_step
from serving.updates.versions import Versions
from storage.errors import EmberlineError, NotFound, Unavailable

logger = logging.getLogger("emberline.serving")


class Stopped(EmberlineError):  # noqa: N818 - no error: the model is being unloaded
    """Work was given up because the model is being unloaded. One of ours, so that a store lets it through as it is."""


@dataclass(frozen=True)
class Routes:
    """Where requests go. canary: a version that answers this fraction of them from its own sessions."""

    served: LoadedModel | None = None
    by_version: Mapping[str, LoadedModel] = field(default_factory=dict)
    canary: tuple[LoadedModel, float] | None = None


@dataclass(frozen=True)
class Awaiting:
    """A version that waits for `allow`. key: digest of its manifest; another version of its number does not wait."""

    key: str
    reason: str


class LiveModel:
    """Any thread. `lock` guards `facts`, `lines`, `default` and every line's view."""

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        cores: CoreShares | None = None,
        on_step: OnStep | None = None,
        gpus: Gpus | None = None,
    ) -> None:
        """cores, gpus: shared with the other models of the process; None: no GPUs."""
        self.name = name
        self.cores = cores or CoreShares()
        self.gpus = gpus
        self.folder = config.model_repository / name
        self.place = str(self.folder.resolve())  # as the state file names the folder
        self.store_root = config.store_dir / name
        self.versions = Versions(self.folder, self.store_root)
        self.lock = threading.RLock()
        self.file = StateFile(self.store_root)
        self.attempts = Attempts(self.store_root, name)
        self.facts = ModelState()
        # Whether `facts` are those of the state file; until then an operator can decide nothing.
        self.knows_facts = False
        # The snapshots that led to what was served before its store was lost.
        self.again: frozenset[str] = frozenset()
        self.lines: tuple[StoreLine, ...] = ()
        self.default: StoreLine | None = None
        self.config: ModelConfig | None = None
        self.counters = UpdateCounters()
        self.budget = DramBudget()
        self.routes = Routes()
        self.waiting = ""
        # Versions that wait for `allow`, and the last failure that is nobody's fault, such as a full disk.
        self.awaiting: dict[int, Awaiting] = {}
        self.trouble = ""
        # Why the last merge failed, and why a damaged store could not be replaced; "" when neither is so.
        self.merge_trouble = ""
        self.mend_trouble = ""
        self.on_damage: Callable[[], None] = lambda: None
        # By snapshot: versions that are served, and whose files are not what was published any more.
        self.damaged: dict[str, str] = {}
        # Nothing is late that appeared before this moment: the server was not there, or was told to wait.
        self.free_since_ns = time.time_ns()
        self.stopping = threading.Event()
        self.merge_wake = threading.Event()
        self.retiring: list[threading.Thread] = []
        # Stores that are open, and deltas and versions that are being taken, in a line or not: nobody may delete them.
        self.open_folders: set[str] = set()
        self.keeping: set[str] = set()
        self._on_step = on_step
        self._rebuilding = ""
        self._released = threading.Condition(threading.Lock())

    def step(self, name: str) -> None:
        """Notes that a step of an update is done."""
        check_step(name)
        if self._on_step is not None:
            self._on_step(self.name, name)

    @contextmanager
    def taking(self, *snapshots: str) -> Iterator[None]:
        """Nothing that the store keeps of these snapshots is collected meanwhile, whether a line has them or not."""
        with self.lock:
            fresh = set(snapshots) - self.keeping
            self.keeping |= fresh
        try:
            yield
        finally:
            with self.lock:
                self.keeping -= fresh

    @contextmanager
    def taking_upon(self, line: StoreLine) -> Iterator[LineView]:
        """Gives the view of a line, and is `taking` its snapshots, which may be merged meanwhile."""
        with ExitStack() as kept:
            with self.lock:
                view = line.view
                kept.enter_context(self.taking(*(entry.id for entry in view.entries)))
            yield view

    @contextmanager
    def rebuilding(self, why: str) -> Iterator[None]:
        """Meanwhile `damage` says so, also while nothing is served."""
        self._rebuilding = why
        try:
            yield
        finally:
            self._rebuilding = ""

    @property
    def damage(self) -> str:
        """Which store is damaged and is being filled again, and why; "" for none."""
        for line in self.lines:
            if line.store.ssd.damage.found:
                text = f"the store {line.folder} is damaged, and another is filled to take its place"
                failure = f"; that fails and is tried again: {self.mend_trouble}" if self.mend_trouble else ""
                return f"{text}: {line.store.ssd.damage.found}{failure}"
        return self._rebuilding

    def check_stop(self) -> None:
        """Raises Stopped when the model is being unloaded."""
        if self.stopping.is_set():
            raise Stopped

    def route(self, version: str, routing_key: str) -> LoadedModel:
        """Where a request goes. Raises NotFound, or Unavailable with the reason."""
        routes = self.routes
        if version:
            model = routes.by_version.get(version)
            if model is None:
                self._no_version(version)
            return model  # type: ignore[return-value]
        if routes.canary is not None and routing_point(self.name, routing_key) < routes.canary[1]:
            return routes.canary[0]
        if routes.served is None:
            reason = self.why_not()
            state = "is not loaded" if self.stopping.is_set() else "is not ready"
            raise Unavailable(f"model {self.name!r} {state}{f': {reason}' if reason else ''}")
        return routes.served

    def why_not(self) -> str:
        """Why nothing is served, in words; "" when there is nothing to say."""
        with self.lock:
            refusals = [refusal.reason for refusal in self.facts.quarantine.values()]
            awaiting = [each.reason for each in self.awaiting.values()]
            reasons = [self.trouble, self.damage, *awaiting, self.waiting, *refusals[-1:]]
        return next((reason for reason in reasons if reason), "")

    def commit(
        self,
        *,
        facts: ModelState | None = None,
        views: Mapping[StoreLine, LineView] | None = None,
        lines: Sequence[StoreLine] | None = None,
        default: StoreLine | None = None,
    ) -> None:
        """Makes a change durable, and then visible. What is not given stays. Raises StoreError: nothing changed then.

        There is no way out between the two: what the file says is what is served.
        """
        with self.lock:
            facts = facts or self.facts
            views = views or {}
            lines = self.lines if lines is None else tuple(lines)
            default = default or self.default
            self._prepare_cards(facts, views, lines)
            self.write(facts, views, lines, default)
            self.step("recorded")
            self.facts, self.lines, self.default = facts, lines, default
            for line, view in views.items():
                line.view = view
            self._show()
            self.step("switched")
        self.merge_wake.set()

    def write(
        self,
        facts: ModelState,
        views: Mapping[StoreLine, LineView],
        lines: Sequence[StoreLine],
        default: StoreLine | None,
    ) -> None:
        """Writes the state file. Under the lock. Raises StoreError."""
        self.file.write(
            facts.model_copy(
                update={
                    "repository": self.place,
                    "lines": tuple(line.state(views.get(line)) for line in lines),
                    "default": "" if default is None else default.folder.name,
                    "held": facts.held[-MAX_REMEMBERED:],
                    "abandoned": facts.abandoned[-MAX_REMEMBERED:],
                }
            )
        )

    def keep_facts(self, facts: ModelState) -> None:
        """Writes facts that change nothing that is served. Under the lock. Raises StoreError."""
        if self.lines:
            self.write(facts, {}, self.lines, self.default)
        self.facts = facts

    def keep_decision(self, facts: ModelState) -> None:
        """Writes what an operator decided while nothing is served. Under the lock. Raises StoreError.

        The stores that the state file names stay in it: they may be opened at the next try.
        """
        if self.lines:
            self.write(facts, {}, self.lines, self.default)
        else:
            self.file.write(facts)
        self.facts = facts

    def watch_releases(self, lane: Lane) -> None:
        """Hears when snapshots of a version fall free."""
        lane.model.line.on_release(self._on_release)

    def wait_released(self, line: StoreLine, snapshots: Iterable[Snapshot], timeout_s: float | None = None) -> bool:
        """Waits until no batch uses any of these; False when that did not come in time, or the model stops."""
        wanted = set(snapshots)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._released:
            while line.in_use() & wanted:
                if self.stopping.is_set() or (deadline is not None and time.monotonic() >= deadline):
                    return False
                # A release cannot be missed, stopping can.
                self._released.wait(0.25)
        return True

    def canary_entry(self) -> tuple[StoreLine, StagedSnapshot, float] | None:
        """The canary that runs, and its fraction. Under the lock."""
        canary = self.facts.canary
        if canary is None or canary.snapshot is None:
            return None
        for line in self.lines:
            position = line.view.find(canary.snapshot)
            if position is not None:
                return line, line.view.entries[position], canary.fraction
        return None

    def each_lane(self, work: Callable[[LoadedModel], None]) -> None:
        """Does something with every loaded version."""
        with self.lock:
            models = [lane.model for line in self.lines for lane in line.lanes.values()]
        for model in models:
            work(model)

    def refuse_waiters(self, texts: Iterable[str], reason: str) -> None:
        """Tells who waits for one of these snapshots that it does not come."""
        for text in texts:
            self.each_lane(lambda model, text=text: model.line.refuse(text, reason))  # type: ignore[misc]

    def accept_waiters(self, texts: Iterable[str]) -> None:
        """These snapshots may come after all."""
        for text in texts:
            self.each_lane(lambda model, text=text: model.line.accept(text))  # type: ignore[misc]

    def _on_release(self, _: Snapshot) -> None:
        with self._released:
            self._released.notify_all()
        # What was left behind may be dropped now.
        self.merge_wake.set()

    def _prepare_cards(
        self, facts: ModelState, views: Mapping[StoreLine, LineView], lines: Sequence[StoreLine]
    ) -> None:
        """What is to be served, and the canary, are on the cards before requests ask for them. Under the lock."""
        for line in lines:
            view = views.get(line, line.view)
            prepare_cards(line.store, view.current.snapshot.mask)
            canary = facts.canary
            position = None if canary is None or canary.snapshot is None else view.find(canary.snapshot)
            if position is not None:
                prepare_cards(line.store, view.entries[position].snapshot.mask)

    def _show(self) -> None:
        """Points requests at what `lines`, `default` and `facts` say. Under the lock."""
        canary = self.canary_entry()
        by_version: dict[str, LoadedModel] = {}
        standing_by: list[tuple[StoreLine, Lane]] = []
        for line in self.lines:
            served, trial = line.view.current, canary[1] if canary is not None and canary[0] is line else None
            beside = None
            if canary is not None and trial is not None and trial.lane is served.lane:
                beside = (trial.snapshot, trial.covers(), canary[2])
            elif trial is not None:
                trial.lane.model.serve(trial.snapshot, trial.covers(), by_default=True)
            by_default = line is self.default or beside is not None
            served.lane.model.serve(served.snapshot, served.covers(), beside, by_default=by_default)
            by_version[served.lane.model.version] = served.lane.model
            answering = (served.lane, None if trial is None else trial.lane)
            standing_by += [(line, lane) for lane in line.lanes.values() if lane not in answering]
        lane_canary = None
        served_model = None if self.default is None else self.default.view.current.lane.model
        if canary is not None and canary[1].lane.model is not served_model:
            lane_canary = (canary[1].lane.model, canary[2])
            by_version.setdefault(canary[1].lane.model.version, canary[1].lane.model)
        self.routes = Routes(served_model, by_version, lane_canary)
        for line, lane in standing_by:
            # It stays for a rollback; who waits there for something newer is answered by what is served.
            successor, newest = line.view.current.lane.model, _newest(line, lane)
            if newest is None:
                lane.model.hand_over(successor)
            else:
                lane.model.stand_by(newest.snapshot, newest.covers(), successor)

    def show(self) -> None:
        """Points requests at what is there now, without a change to record."""
        with self.lock:
            self._show()

    def _no_version(self, version: str) -> None:
        with self.lock:
            number = int(version) if version.isdecimal() and len(version) < 19 else 0
            awaiting = self.awaiting.get(number)
            reason = "" if awaiting is None else awaiting.reason
            for refusal in self.facts.quarantine.values():
                if refusal.path == str(self.folder / version):
                    reason = refusal.reason
        if reason:
            raise Unavailable(f"model {self.name!r} version {version} is not ready (UNAVAILABLE): {reason}")
        raise NotFound(f"Request for unknown model: {self.name!r} version {version[:40]} is not found")


def _newest(line: StoreLine, lane: Lane) -> StagedSnapshot | None:
    for entry in reversed(line.view.entries):
        if entry.lane is lane:
            return entry
    return None
