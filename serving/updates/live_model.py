"""Holds the state of a model during updates: its stores, its state file, and the pointers that requests follow.

Every change of what is served goes through `commit`: first the state file, then the pointers. The lock is held for
short times only, never while something is read, staged or scored, so an operator's call does not wait for an update.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

from pydantic import JsonValue

from serving.config import ServerConfig
from serving.engine.canary import routing_point
from serving.engine.core_shares import CoreShares
from serving.engine.model import LoadedModel
from serving.feedback.model_feedback import ModelFeedback
from serving.gpu.driver import Gpus
from serving.gpu.tables import prepare_gpus
from serving.model_config.pbtxt import ModelConfig
from serving.pipeline.snapshot import Snapshot
from serving.updates.agreement import Agreement, Alone
from serving.updates.attempts import Attempts
from serving.updates.budgets import DramBudget
from serving.updates.counters import UpdateCounters
from serving.updates.judges import Judges
from serving.updates.mount import LoadedVersion, MountedStore, StagedSnapshot, StoreView
from serving.updates.routes import Awaiting, Routes
from serving.updates.shadowing import Shadowing
from serving.updates.state import MAX_REMEMBERED, ModelState
from serving.updates.state_file import StateFile
from serving.updates.steps import OnStep, check_step
from serving.updates.versions import Versions
from storage.checkpoint import PublishedVersion
from storage.errors import EmberlineError, NotFound, Unavailable

logger = logging.getLogger("emberline.serving")


class Stopped(EmberlineError):  # noqa: N818 - no error: the model is being unloaded
    """Work was given up because the model is being unloaded.

    It is an EmberlineError, so that a store passes it on as it is.
    """


class LiveModel:
    """A model that is loaded and updated. Thread-safe.

    `lock` guards `facts`, `mounts`, `default` and every mount's view.
    """

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
        # True once `facts` are those of the state file; until then an operator can decide nothing.
        self.knows_facts = False
        # The snapshots that led to what was served before its store was lost.
        self.again: frozenset[str] = frozenset()
        self.mounts: tuple[MountedStore, ...] = ()
        self.default: MountedStore | None = None
        self.config: ModelConfig | None = None
        self.counters = UpdateCounters()
        self.shadowing = Shadowing()
        # Looks at requests that were answered, where the options say so.
        self.feedback = ModelFeedback(name, config)
        # Returns what live AUC last decided about a canary; None for nothing.
        self.trial_report: Callable[[], dict[str, JsonValue] | None] = lambda: None
        # Judges the canary that runs, if it is time.
        self.judge_canary: Callable[[], None] = lambda: None
        # Who judges canaries by live AUC, where other replicas have a say.
        self.judges: Judges | None = None
        self.budget = DramBudget()
        self.routes = Routes()
        # Called with the new routes before requests follow them; the versions that leave still answer then.
        self.on_routes: Callable[[str, Routes], None] = lambda name, routes: None
        # Says what may be taken and shown, where other replicas have a say.
        self.agreement: Agreement = Alone()
        # The snapshot that is served, and when that began in this process.
        self.since: tuple[str, int] = ("", 0)
        # Seconds from the time at which all replicas were to switch until this one had, at the last such switch.
        self.switch_late_s = 0.0
        # True while nothing leads from what is served to what the other replicas serve: it is loaded beside.
        self.anew = False
        # Says what is on its way from an object store, or why nothing comes from there; "" for neither.
        self.remote: Callable[[], str] = lambda: ""
        # Brings a list of hot ids to the folder of a store of that version that has none.
        self.bring_hot_ids: Callable[[PublishedVersion, Path], None] = lambda published, folder: None
        self.waiting = ""
        # The version or delta that is being read, staged and judged, such as 1.18; "" for none.
        self.staging = ""
        # Versions that wait for `allow`, and the last failure that is nobody's fault, such as a full disk.
        self.awaiting: dict[int, Awaiting] = {}
        self.trouble = ""
        # Reason why the last merge failed, and why a damaged store could not be replaced; "" for none.
        self.merge_trouble = ""
        self.mend_trouble = ""
        self.on_damage: Callable[[], None] = lambda: None
        # Damage of served versions whose files are no longer what was published, by snapshot.
        self.damaged: dict[str, str] = {}
        # Earliest time from which delays are counted: before, the server did not run, or was told to wait.
        self.free_since_ns = time.time_ns()
        self.stopping = threading.Event()
        self.merge_wake = threading.Event()
        self.retiring: list[threading.Thread] = []
        # Stores that are open, and deltas and versions that are being taken, in a mount or not: they must not be
        # deleted.
        self.open_folders: set[str] = set()
        self.keeping: set[str] = set()
        self._on_step = on_step
        self._rebuilding = ""
        self._released = threading.Condition(threading.Lock())

    def step(self, name: str) -> None:
        """Notes that a step of an update is done."""
        check_step(name)
        self.counters.count_step(name)
        if self._on_step is not None:
            self._on_step(self.name, name)

    @contextmanager
    def taking(self, *snapshots: str) -> Iterator[None]:
        """Protects what the store keeps of these snapshots from deletion meanwhile, whether a mount has them or not."""
        with self.lock:
            fresh = set(snapshots) - self.keeping
            self.keeping |= fresh
        try:
            yield
        finally:
            with self.lock:
                self.keeping -= fresh

    @contextmanager
    def taking_upon(self, mount: MountedStore) -> Iterator[StoreView]:
        """Yields the view of a mount, and is `taking` its snapshots, which may be merged meanwhile."""
        with ExitStack() as kept:
            with self.lock:
                view = mount.view
                kept.enter_context(self.taking(*(entry.id for entry in view.entries)))
            yield view

    @contextmanager
    def rebuilding(self, why: str) -> Iterator[None]:
        """Makes `damage` report within the block that a store is filled again, also while nothing is served."""
        self._rebuilding = why
        try:
            yield
        finally:
            self._rebuilding = ""

    @property
    def damage(self) -> str:
        """The store that is damaged and is being filled again, and why; "" for none."""
        for mount in self.mounts:
            if mount.store.ssd.damage.found:
                text = f"the store {mount.folder} is damaged, and another is filled to take its place"
                failure = f"; that fails and is tried again: {self.mend_trouble}" if self.mend_trouble else ""
                return f"{text}: {mount.store.ssd.damage.found}{failure}"
        return self._rebuilding

    def session_count(self, config: ModelConfig) -> int:
        """Returns how many sessions a version begins with: as many as the served one where they follow the load."""
        fixed = self.facts.fixed_sessions(config.sessions)
        most, served = config.options.max_sessions, self.routes.served
        if fixed is not None or most is None or served is None or served.scaling is None:
            return fixed or config.sessions
        return max(config.sessions, min(most, served.sessions))

    @property
    def has_fixed_sessions(self) -> bool:
        """Returns whether an operator has said how many sessions there are."""
        return self.config is not None and self.facts.fixed_sessions(self.config.sessions) is not None

    def check_stop(self) -> None:
        """Raises Stopped when the model is being unloaded."""
        if self.stopping.is_set():
            raise Stopped

    def route(self, version: str, routing_key: str) -> LoadedModel:
        """Returns the version that answers a request. Raises NotFound, or Unavailable with the reason."""
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
        """Returns why nothing is served, in words; "" when there is no reason to report."""
        with self.lock:
            refusals = [refusal.reason for refusal in self.facts.quarantine.values()]
            awaiting = [each.reason for each in self.awaiting.values()]
            reasons = [self.remote(), self.trouble, self.damage, *awaiting, self.waiting, *refusals[-1:]]
        return next((reason for reason in reasons if reason), "")

    def commit(
        self,
        *,
        facts: ModelState | None = None,
        views: Mapping[MountedStore, StoreView] | None = None,
        mounts: Sequence[MountedStore] | None = None,
        default: MountedStore | None = None,
        at: float = 0.0,
    ) -> None:
        """Makes a change durable, and then visible. What is not given stays. Raises StoreError: then nothing changed.

        Nothing returns between the two steps: what the file says is what is served. at: not visible before this time,
        by `time.monotonic`.
        """
        with self.lock:
            facts = facts or self.facts
            views = views or {}
            mounts = self.mounts if mounts is None else tuple(mounts)
            default = default or self.default
            facts, views = self._settle_shadow(facts, dict(views), mounts, default)
            self._prepare_gpus(facts, views, mounts)
            self.write(facts, views, mounts, default)
            self.step("recorded")
            with self._closed_from(at):
                self._wait_until(at)
                for number in list(self.awaiting):
                    if facts.allowed.get(str(number)) != self.facts.allowed.get(str(number)):
                        del self.awaiting[number]  # an operator has allowed it
                self.facts, self.default = facts, default
                if default is not None:
                    default.is_hidden = False
                for mount, view in views.items():
                    there = {*view.entries, *view.beside}
                    mount.left_behind += tuple(
                        entry for entry in (*mount.view.entries, *mount.view.beside) if entry not in there
                    )
                    mount.view = view
                self.replace_mounts(mounts)
            self.switch_late_s = time.monotonic() - at if at else self.switch_late_s
            self.step("switched")
        self.merge_wake.set()

    def _settle_shadow(
        self,
        facts: ModelState,
        views: dict[MountedStore, StoreView],
        mounts: Sequence[MountedStore],
        default: MountedStore | None,
    ) -> tuple[ModelState, dict[MountedStore, StoreView]]:
        """Ends a shadow that would be served, and drops what is staged for one that is none any more."""
        shadow = facts.shadow
        served = None if default is None else views.get(default, default.view).current
        if shadow is not None and served is not None:
            own = (served.id, served.loaded.published.snapshot) if shadow.follows else (served.id,)
            running = self.shadow_entry()
            erased_ms = served.loaded.published.manifest.erased_unix_ms
            ended = f"{served.name} is served now" if shadow.snapshot in own else ""
            if running is not None and erased_ms > running[0].content.published_unix_ms:
                ended = f"ids were forgotten since the version of {running[1].name} was published"
            if ended:
                facts = facts.model_copy(update={"shadow": None})
                self.shadowing.ended = ended
        kept = facts.shadow.snapshot if facts.shadow is not None else None
        for mount in mounts:
            view = views.get(mount, mount.view)
            if view.beside and view.beside[-1].id != kept:
                views[mount] = view.without_beside()
        return facts, views

    def _closed_from(self, at: float) -> AbstractContextManager[None]:
        """Lets no batch begin on what is served now after this time, until the switch; 0.0: no such time."""
        if at and self.default is not None:
            return self.default.view.current.loaded.model.history.closed_from(at)
        return nullcontext()

    def _wait_until(self, at: float) -> None:
        # Also while the model is stopping: it answers requests until then, and the others do not switch earlier.
        time.sleep(max(0.0, at - time.monotonic()))

    def write(
        self,
        facts: ModelState,
        views: Mapping[MountedStore, StoreView],
        mounts: Sequence[MountedStore],
        default: MountedStore | None,
    ) -> None:
        """Writes the state file. Call it under the lock. Raises StoreError."""
        self.file.write(
            facts.model_copy(
                update={
                    "repository": self.place,
                    "lines": tuple(mount.state(views.get(mount)) for mount in mounts),
                    "default": "" if default is None else default.folder.name,
                    "held": facts.held[-MAX_REMEMBERED:],
                    "abandoned": facts.abandoned[-MAX_REMEMBERED:],
                }
            )
        )

    def keep_facts(self, facts: ModelState) -> None:
        """Writes facts that change nothing that is served. Call it under the lock. Raises StoreError."""
        if self.mounts:
            self.write(facts, {}, self.mounts, self.default)
        self.facts = facts

    def keep_decision(self, facts: ModelState) -> None:
        """Writes what an operator decided while nothing is served. Call it under the lock. Raises StoreError.

        The stores that the state file names stay in it: they may be opened at the next try.
        """
        if self.mounts:
            self.write(facts, {}, self.mounts, self.default)
        else:
            self.file.write(facts)
        self.facts = facts

    def watch_releases(self, loaded: LoadedVersion) -> None:
        """Listens for snapshots of a version that are no longer in use."""
        loaded.model.history.on_release(self._on_release)

    def wait_released(self, mount: MountedStore, snapshots: Iterable[Snapshot], timeout_s: float | None = None) -> bool:
        """Waits until no batch uses any of these snapshots; False when that takes too long, or the model stops."""
        wanted = set(snapshots)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._released:
            while mount.in_use() & wanted:
                if self.stopping.is_set() or (deadline is not None and time.monotonic() >= deadline):
                    return False
                # A release cannot be missed, stopping can.
                self._released.wait(0.25)
        return True

    def canary_entry(self) -> tuple[MountedStore, StagedSnapshot, float] | None:
        """Returns the running canary with its mount and its fraction; None when none runs. Call it under the lock."""
        canary = self.facts.canary
        if canary is None or canary.snapshot is None:
            return None
        for mount in self.mounts:
            position = mount.view.find(canary.snapshot)
            if position is not None:
                return mount, mount.view.entries[position], canary.fraction
        return None

    def shadow_entry(self) -> tuple[MountedStore, StagedSnapshot] | None:
        """Returns the shadow with its mount; None when there is none, or it is not loaded. Call it under the lock."""
        shadow = self.facts.shadow
        if shadow is None or shadow.snapshot is None:
            return None
        for mount in self.mounts:
            current = mount.view.current
            if shadow.follows and mount is not self.default and current.loaded.published.snapshot == shadow.snapshot:
                return mount, current
            entry = None if shadow.follows else mount.view.staged(shadow.snapshot)
            if entry is not None:
                return mount, entry
        return None

    def each_loaded(self, work: Callable[[LoadedModel], None]) -> None:
        """Calls `work` for every loaded version."""
        with self.lock:
            models = [loaded.model for mount in self.mounts for loaded in mount.loaded_versions.values()]
        for model in models:
            work(model)

    def refuse_waiters(self, texts: Iterable[str], reason: str) -> None:
        """Makes requests that wait for one of these snapshots fail with the reason."""
        for text in texts:
            self.each_loaded(lambda model, text=text: model.history.refuse(text, reason))  # type: ignore[misc]

    def accept_waiters(self, texts: Iterable[str]) -> None:
        """Withdraws the refusals of these snapshots: they may be served after all."""
        for text in texts:
            self.each_loaded(lambda model, text=text: model.history.accept(text))  # type: ignore[misc]

    def _on_release(self, _: Snapshot) -> None:
        with self._released:
            self._released.notify_all()
        # What was left behind may be dropped now.
        self.merge_wake.set()

    def _prepare_gpus(
        self, facts: ModelState, views: Mapping[MountedStore, StoreView], mounts: Sequence[MountedStore]
    ) -> None:
        """Makes the snapshots to be served, and the canary, ready on the GPUs before requests ask for them.

        Call it under the lock.
        """
        for mount in mounts:
            view = views.get(mount, mount.view)
            prepare_gpus(mount.store, view.current.snapshot.mask)
            canary = facts.canary
            position = None if canary is None or canary.snapshot is None else view.find(canary.snapshot)
            if position is not None:
                prepare_gpus(mount.store, view.entries[position].snapshot.mask)

    def _show(self) -> None:
        """Points requests at what `mounts`, `default` and `facts` say. Call it under the lock."""
        canary = self.canary_entry()
        by_version: dict[str, LoadedModel] = {}
        standing_by: list[tuple[MountedStore, LoadedVersion]] = []
        for mount in self.mounts:
            served, trial = mount.view.current, canary[1] if canary is not None and canary[0] is mount else None
            beside = None
            if canary is not None and trial is not None and trial.loaded is served.loaded:
                beside = (trial.snapshot, trial.covers(), canary[2])
            elif trial is not None:
                trial.loaded.model.serve(trial.snapshot, trial.covers(), by_default=True)
            by_default = mount is self.default or beside is not None
            served.loaded.model.serve(served.snapshot, served.covers(), beside, by_default=by_default)
            if mount is self.default or not mount.is_hidden:
                by_version[served.loaded.model.version] = served.loaded.model
            answering = (served.loaded, None if trial is None else trial.loaded)
            standing_by += [(mount, loaded) for loaded in mount.loaded_versions.values() if loaded not in answering]
        canary_route = None
        served_model = None if self.default is None else self.default.view.current.loaded.model
        if canary is not None and canary[1].loaded.model is not served_model:
            canary_route = (canary[1].loaded.model, canary[2])
            by_version.setdefault(canary[1].loaded.model.version, canary[1].loaded.model)
        self.routes = Routes(served_model, by_version, canary_route)
        self.on_routes(self.name, self.routes)
        if served_model is not None:
            self.feedback.serves(served_model.signature)
        if self.default is not None:
            current, now_ms = self.default.view.current, time.time() * 1000.0
            self.counters.count_events(current.snapshot, now_ms)
            if current.id != self.since[0]:
                self.since = (current.id, int(now_ms))
        shadow = self.shadow_entry()
        self.shadowing.show(
            self.facts.shadow,
            None if shadow is None else shadow[1],
            served_model,
            [loaded.model for mount in self.mounts for loaded in mount.loaded_versions.values()],
        )
        for mount, loaded in standing_by:
            # It stays for a rollback; requests that wait there for a newer snapshot are answered by the served version.
            successor, newest = mount.view.current.loaded.model, _newest(mount, loaded)
            if newest is None:
                loaded.model.hand_over(successor)
            else:
                loaded.model.stand_by(newest.snapshot, newest.covers(), successor)

    def replace_mounts(self, mounts: Sequence[MountedStore]) -> None:
        """Points requests at `mounts` instead; what leaves answers no request that is on its way. Under the lock."""
        leaving = [mount for mount in self.mounts if mount not in mounts]
        self.mounts = tuple(mounts)
        self._show()
        for mount in leaving:
            for loaded in mount.loaded_versions.values():
                loaded.model.leave()

    def show(self) -> None:
        """Points requests at the present state, without a change to record."""
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


def _newest(mount: MountedStore, loaded: LoadedVersion) -> StagedSnapshot | None:
    for entry in reversed(mount.view.entries):
        if entry.loaded is loaded:
            return entry
    return None
