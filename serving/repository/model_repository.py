"""Manages the models of a repository: finds what answers for each, and runs operators' commands."""

from __future__ import annotations

import contextlib
import difflib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from serving._front import KeptRequest
from serving.config import ServerConfig
from serving.engine.core_shares import CoreShares
from serving.engine.endpoint import Endpoint
from serving.engine.model import LoadedModel
from serving.errors import UnknownModel
from serving.fleet.fleet import Fleet
from serving.gpu.driver import Gpus
from serving.model_folders import folders, is_model
from serving.observing.observation import Observation
from serving.repository.identity_models import IdentityEndpoint, IdentityModels
from serving.repository.operator_calls import OperatorCalls
from serving.repository.places import check_places
from serving.repository.probes import Probes
from serving.repository.regions import SharedRegions
from serving.repository.remote import repository_mirror
from serving.repository.session_scaler import SessionScaler
from serving.repository.shared_hot_ids import SharedHotIds
from serving.repository.starts import Starts
from serving.repository.watcher import Watcher
from serving.updates import refusals, report
from serving.updates.live_model import LiveModel
from serving.updates.model_updater import ModelUpdater
from serving.updates.report import VersionEntry
from serving.updates.routes import Routes
from serving.updates.steps import OnStep
from storage.errors import EngineEnded, NotFound, StoreError, Unavailable, Unsupported
from storage.objects.follower import UNWATCHED
from storage.objects.mirror import RepositoryMirror

__all__ = ["Answerer", "ModelRepository", "VersionEntry"]

logger = logging.getLogger("emberline.serving")

Answerer = Endpoint | IdentityEndpoint

_UNLOAD_S = 30.0


class ModelRepository(OperatorCalls):
    """The models of a repository: loads them at the start, follows the folder, answers `get`. Thread-safe.

    Any thread may make the calls of operators too, but they may take as long as a load.
    """

    def __init__(
        self,
        config: ServerConfig,
        on_step: OnStep | None = None,
        gpus: Gpus | None = None,
        began: float | None = None,
    ) -> None:
        """Finds the models. Raises NotFound when the repository or a model is not there, ConfigError.

        on_step: called with (model, step) after every step of an update, for tests. gpus: GPUs for sessions; None:
        none. began: when the process was started, as of time.monotonic(); None: now.
        """
        self._config = config
        #: The options of the server, with the ports that it took once it has.
        self.config = config
        self.gpus = gpus
        self._on_step = on_step
        self._cores = CoreShares()
        #: Observes the requests; the server starts it.
        self.observation = Observation(config)
        self.regions = SharedRegions(config.max_body_bytes, config.max_inflight_bytes, prefixes=config.shared_memory)
        self._root = root = config.model_repository
        #: This server's part in what replicas agree on; None without replicas.
        self.fleet = Fleet(config) if config.fleet else None
        #: Brings what is in an object store into the folder; None for a repository of this machine.
        self.mirror = repository_mirror(config, UNWATCHED if self.fleet is None else self.fleet.watch)
        if self.fleet is not None and self.mirror is not None:
            self.fleet.follow(self.mirror)
        #: What it took until each model was ready.
        self.starts = Starts(time.monotonic() if began is None else began, self.mirror)
        self._hot_ids = None if self.mirror is None else SharedHotIds(self.mirror.objects)
        remote = () if self.mirror is None else self.mirror.find_models()
        check_places(config)
        found = folders(root)
        for name in config.models:
            if name not in found:
                close = difflib.get_close_matches(name, found, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(found) or 'none'}"
                raise NotFound(f"model repository {str(root)!r} has no model {name!r}{hint}")
        names = list(dict.fromkeys(config.models)) or [
            name for name in found if name in remote or is_model(root / name)
        ]
        self._identity = IdentityModels(root)
        self._identity.expect(name for name in names if self._identity.is_one(name))
        # Replaced as a whole, so that a request reads it without a lock.
        self._models = {
            name: ModelUpdater(name, config, self._cores, on_step, gpus=gpus)
            for name in names
            if name not in self._identity
        }
        for updater in self._models.values():
            self._join(updater)
        self._on_routes: Callable[[str, Routes], None] = lambda name, routes: None
        # Updaters of folders that have gone, until their stores are closed.
        self._leaving: dict[str, ModelUpdater] = {}
        self._changes = threading.Lock()
        self._loaded_all = threading.Event()
        self._stopping = False
        self._closing = False
        self.probes = Probes(self.is_ready)
        self._watcher = Watcher(root, config.poll_s, self._changed)
        self._scaler = SessionScaler(lambda: [updater.model for updater in list(self._models.values())])

    def watch_routes(self, on_routes: Callable[[str, Routes], None]) -> None:
        """Calls `on_routes` with a model's name and routes whenever these change, before requests follow them."""
        self._on_routes = on_routes

    @property
    def names(self) -> list[str]:
        """Names of the models to serve."""
        return [*self._models, *self._identity.names]

    @property
    def store_dir(self) -> Path:
        """The folder of the stores; a part of it may not be there before the first load."""
        return self._config.store_dir

    @property
    def folder(self) -> Path:
        """The folder of the models; of a repository in an object store, its copy on this machine."""
        return self._root

    @property
    def is_loaded(self) -> bool:
        """True if the first loading has ended, with or without success."""
        return self._loaded_all.is_set()

    def load_all(self) -> None:
        """Loads every model, one after the other, then follows the folder.

        One that fails is UNAVAILABLE with the reason; nothing is raised.
        """
        if self.gpus is not None:
            there = ", ".join(map(str, self.gpus.infos)) or f"none: {self.gpus.why_none}"
            logger.info("GPUs: %s", there)
        if self.mirror is not None:
            self.mirror.start([name for name in self.names if name in self._models])
        if self.fleet is not None:
            for name in self._models:
                self.fleet.start(name)
        self._identity.load_all(self._identity.names)
        for updater in list(self._models.values()):
            if self.mirror is not None:
                self.mirror.wait_first(updater.model.name)
            if self._stopping:
                break
            updater.load()
            self.starts.note(updater.model)
        with self._changes:
            self._loaded_all.set()
            if self._stopping:
                return
            for updater in self._models.values():
                updater.follow()
            self._watcher.start()
            self._scaler.start()
            if self._hot_ids is not None:
                self._hot_ids.start(lambda: [updater.model for updater in self._models.values()])

    def index(self) -> list[VersionEntry]:
        """Returns every version with its state; refused ones with the reason."""
        found = [entry for updater in self._models.values() for entry in report.versions(updater.model)]
        return found + self._identity.entries()

    def loaded(self) -> Iterator[LoadedModel]:
        """Iterates over every version that is ready, of models with tables."""
        return iter([entry.loaded for entry in self.index() if entry.loaded is not None])

    def answerers(self) -> list[Answerer]:
        """Returns everything that answers requests for a model and version, except tables under names of their own."""
        return [*self.loaded(), *self._identity.served]

    def is_ready(self) -> bool:
        """Returns whether the server takes requests; see `strict_readiness`. A model that serves something is ready."""
        if not self.is_loaded or self._stopping:
            return False
        serving = [self._may_serve(updater.model) for updater in self._models.values()]
        serving += [entry.state == "READY" for entry in self._identity.entries()]
        return (all(serving) if self._config.strict_readiness else any(serving)) and bool(serving)

    def _may_serve(self, model: LiveModel) -> bool:
        served = model.routes.served
        if served is None or served.unready:
            return False
        return self.fleet is None or not self.fleet.why_not(model.name)

    def get(self, name: str, version: str = "", routing_key: str = "") -> Answerer:
        """Returns the version asked for, or the one that is served. Raises NotFound, or Unavailable with the reason.

        name: name of a model, or MODEL.TABLE for one of its tables. routing_key: while a version is a canary, the
        requests of a fraction of the keys go to it.
        """
        updater, table = self._models.get(name), ""
        if updater is None:
            if name in self._identity:
                return self._identity.get(name, version)
            updater, table = self._resolve(name)
        if self._closing:
            raise Unavailable(f"model {name!r} is shutting down")
        found = updater.model.route(version, routing_key)
        return found.table(table) if table else found

    def note_traced(self, request: KeptRequest) -> None:
        """Lets the latency histogram of a model name the trace of a request that was answered."""
        with contextlib.suppress(NotFound, Unavailable, Unsupported):  # it may be gone by now
            answerer = self.get(request.model, request.version)
            if isinstance(answerer, Endpoint):
                canary = answerer.history.canary
                is_canary = canary is not None and canary[0].name == request.snapshot
                statistics = answerer.canary_statistics if is_canary else answerer.statistics
                statistics.traced(request.ended_ns - request.arrived_ns, request.trace_id, time.time())

    def answering(self, name: str) -> list[Answerer]:
        """Returns what may answer a request for a model without a version.

        That is the served version, and a version that is a canary.
        """
        if name in self._identity:
            return [self._identity.get(name, "")]
        updater, table = self._resolve(name)
        routes = updater.model.routes
        found = [routes.served] if routes.served is not None else []
        if routes.canary is not None:
            found.append(routes.canary[0])
        return [each.table(table) for each in found] if table else list(found)

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Returns whether a request for it would be taken; False for an unknown model."""
        try:
            found = self.get(name, version)
        except (NotFound, Unavailable):
            return False
        if self.fleet is not None and not version and self.fleet.why_not(name):
            return False
        return not (isinstance(found, Endpoint) and found.unready)

    def is_live(self) -> bool:
        """Returns whether a restart would not help: False when a model has lost its GPUs."""
        # No lock is taken: the caller must not wait for an update.
        served = [updater.model.routes.served for updater in list(self._models.values())]
        return not any(each is not None and each.trouble for each in served)

    def versions(self, name: str) -> list[str]:
        """Returns the versions of a model that are ready."""
        if name in self._identity:
            return [self._identity.get(name, "").version]
        return sorted(self._resolve(name)[0].model.routes.by_version, key=int)

    def loaded_versions(self, name: str) -> list[Answerer]:
        """Returns every ready version of a model. Raises NotFound, or Unavailable when there is none."""
        served = self.get(name)
        if name in self._identity:
            return [served]
        updater, table = self._resolve(name)
        by_version = updater.model.routes.by_version  # read once: versions come and go
        found = [by_version[version] for version in sorted(by_version, key=int)]
        return [each.table(table) for each in found] if table else list(found)

    def load(self, name: str) -> None:
        """Looks into the model's folder now, and returns when what is there is served. Raises why it is not.

        What was refused before stays refused, unless its files have changed, or the engine had ended because of it.
        """
        if self.mirror is not None:
            self.mirror.look(name)
        with self._changes:
            if self._stopping:
                raise Unavailable(f"model {name[:200]!r} is not loaded: the server is shutting down")
            self._find_identity(name)
            if name in self._identity or (
                name not in self._models and self._is_wanted(name) and self._identity.is_one(name)
            ):
                self._identity.load(name)
                return
            updater = self._models.get(name)
            if updater is None and not (self._is_wanted(name) and is_model(self._root / name)):
                raise NotFound(f"model {name[:200]!r} is not in the repository")
            if updater is None or updater.model.stopping.is_set():
                updater = self._add(name)
                self._start_member(name)
                updater.follow()
        model = updater.model
        known = {key for key, refusal in model.facts.quarantine.items() if refusal.kind != EngineEnded.__name__}
        member = None if self.fleet is None else self.fleet.member(name)
        if member is not None:
            member.wake_others()
        updater.advance()
        if refusals.forget(model, lambda refusal: refusal.kind == EngineEnded.__name__):
            model.attempts.forget()
            updater.advance()
        fresh = [refusal for key, refusal in model.facts.quarantine.items() if key not in known]
        if fresh:
            raise Unavailable(f"{fresh[-1].path}: {fresh[-1].reason}")
        if model.stopping.is_set():
            raise Unavailable(f"model {name!r} was unloaded while it was loaded")
        if model.routes.served is None:
            raise Unavailable(f"model {name!r} is not ready: {report.waiting(model) or 'nothing can be served'}")

    def unload(self, name: str) -> None:
        """Drains and closes a model until it is loaded again; its memory is given back. Raises NotFound."""
        with self._changes:
            if name in self._identity:
                self._identity.unload(name)
                return
            updater = self._updater(name)
            updater.give_up()
        if not updater.stop(_UNLOAD_S):
            logger.warning("%s: a request or a load is still at work; its store is closed when it has ended", name)
            _stop_in_background(updater)

    def stop_loading(self) -> None:
        """Takes nothing new, and is not ready from now on; requests to loaded models are still answered."""
        self._stopping = True
        if self.mirror is not None:
            self.mirror.give_up()
        for updater in self._models.values():
            updater.give_up()

    def close(self, timeout_s: float) -> None:
        """Closes every model; queued requests are worked off for at most `timeout_s`."""
        self._stopping = self._closing = True
        deadline = time.monotonic() + timeout_s
        if self.mirror is not None:
            self.mirror.stop()
        if self._hot_ids is not None:
            self._hot_ids.stop()
        self._watcher.stop()
        self._scaler.stop()
        for updater in self._models.values():
            try:
                updater.stop(max(0.0, deadline - time.monotonic()))
            except StoreError as error:
                # A full disk, for example. A store that was not closed recovers as it does from any crash.
                logger.error("%s: %s", updater.model.name, error)
        if self.fleet is not None:
            self.fleet.close()

    def _resolve(self, name: str) -> tuple[ModelUpdater, str]:
        """Returns the model of a name, and its table where the name is MODEL.TABLE, else "". Raises NotFound."""
        models = self._models
        if name in models:
            return models[name], ""
        for place, letter in enumerate(name[:300]):
            if letter == "." and name[:place] in models and name[place + 1 :]:
                return models[name[:place]], name[place + 1 :]
        raise UnknownModel.of(name, self.names)

    def _updater(self, name: str) -> ModelUpdater:
        updater = self._models.get(name)
        if updater is None:
            if name in self._identity:
                raise Unsupported(f"model {name!r} (identity) has no snapshots, tables or sessions")
            raise UnknownModel.of(name, self.names)
        return updater

    def _is_wanted(self, name: str) -> bool:
        # A caller's name may be anything, such as "..": only the name of a folder right here is the name of a model.
        is_here = name in {entry.name for entry in self._root.iterdir() if entry.is_dir()} and not name.startswith(".")
        return is_here and (not self._config.models or name in self._config.models)

    def _add(self, name: str) -> ModelUpdater:
        """Makes a new updater for a model, which is not loaded yet. Call it under the lock."""
        before = self._models.get(name) or self._leaving.pop(name, None)
        if before is not None and before.closed.is_set():
            before = None
        updater = ModelUpdater(name, self._config, self._cores, self._on_step, before, self.gpus)
        self._join(updater)
        self._models = {**self._models, name: updater}
        return updater

    def _join(self, updater: ModelUpdater) -> None:
        updater.model.on_routes = self._pass_routes
        if (mirror := self.mirror) is not None:
            if self._hot_ids is not None:
                updater.model.bring_hot_ids = partial(self._hot_ids.bring, updater.model.name)
            updater.model.remote = lambda name=updater.model.name: self._remote_text(mirror, name)  # type: ignore[misc]
        if self.fleet is not None:
            self.fleet.join(updater.model, updater.look)

    def _start_member(self, name: str) -> None:
        if self.fleet is not None:
            self.fleet.start(name)

    def _remote_text(self, mirror: RepositoryMirror, name: str) -> str:
        member = None if self.fleet is None else self.fleet.member(name)
        return mirror.status(name).text or ("" if member is None else member.why_not() or member.waits_for)

    def _pass_routes(self, name: str, routes: Routes) -> None:
        self._on_routes(name, routes)
        if self.is_loaded and name in self._models:
            self.starts.note(self._models[name].model)

    def _find_identity(self, name: str) -> bool:
        """Turns a model that serves nothing into one of identity where its configuration says so by now.

        Its folder was seen before its configuration was written whole. Returns whether it was so. Call it under the
        lock.
        """
        updater = self._models.get(name)
        if updater is None or updater.model.default is not None or not self._identity.is_one(name):
            return False
        self._leave(name)
        self._identity.expect([name])
        return True

    def _leave(self, name: str) -> None:
        """Takes nothing more for a model, and closes it in the background after its requests. Call under the lock."""
        updater = self._leaving[name] = self._models[name]
        self._models = {key: value for key, value in self._models.items() if key != name}
        updater.give_up()
        _stop_in_background(updater)

    def _changed(self, folders: set[Path]) -> None:
        """Wakes the models whose folders changed; wakes all when none is named. Loads and unloads models."""
        if self._stopping:
            return
        self._look_for_models()
        for name, updater in self._models.items():
            updater.follow()  # where there was no thread for it so far
            place = self._root.absolute() / name
            if not folders:
                updater.look()
            elif any(folder == place or place in folder.parents for folder in folders):
                updater.wake()

    def _look_for_models(self) -> None:
        try:
            there = {entry.name for entry in self._root.iterdir() if entry.is_dir() and not entry.name.startswith(".")}
            fresh = [
                name
                for name in sorted(there - set(self.names))
                if self._is_wanted(name) and is_model(self._root / name)
            ]
        except OSError as error:
            logger.warning("%s cannot be read: %s", self._root, error)
            return
        with self._changes:
            if self._stopping:
                return
            for name in (name for name in fresh if name not in self._models and name not in self._identity):
                logger.info("%s: a new model", name)
                if self._identity.is_one(name):
                    self._identity.expect([name])
                    self._identity.load_all([name])
                    continue
                updater = self._add(name)
                self._start_member(name)
                updater.follow()
                updater.wake()
            self._identity.load_all([name for name in self._models if self._find_identity(name)])
            for name in [
                name for name in self._identity.names if name not in there and name not in self._config.models
            ]:
                logger.info("%s: has left the repository", name)
                self._identity.forget(name)
            for name in [name for name in self._models if name not in there and name not in self._config.models]:
                logger.info("%s: has left the repository", name)
                self._leave(name)


def _stop_in_background(updater: ModelUpdater) -> None:
    def stop() -> None:
        while not updater.stop(_UNLOAD_S):
            logger.warning("%s: a request or a load is still at work", updater.model.name)

    threading.Thread(target=stop, name=f"emberline-unload-{updater.model.name}", daemon=True).start()
