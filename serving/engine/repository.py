"""The model repository: which models and versions there are, in which state, and why not where one failed."""

from __future__ import annotations

import difflib
import logging
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from serving.config import ServerConfig
from serving.engine.gate import Claims, gate
from serving.engine.load_progress import log_progress
from serving.engine.model import LoadedModel
from serving.engine.model_config import CONFIG, ModelConfig, read_model_config
from serving.engine.snapshot import Snapshot
from serving.engine.stale_stores import remove_stale_stores
from serving.updates.counters import UpdateCounters
from storage.checkpoint import open_version
from storage.errors import ConfigError, EmberlineError, NotFound, Unavailable, Unsupported
from storage.tiers.tiered import TieredStore

logger = logging.getLogger("emberline.serving")

_VERSION = re.compile(r"[1-9][0-9]{0,17}")


@dataclass(slots=True)
class VersionEntry:
    """One version of a model. version "": it could not be read so far. state: as in Triton's index."""

    model: str
    version: str
    state: str = "LOADING"
    reason: str = ""
    loaded: LoadedModel | None = None
    store: TieredStore | None = None


@dataclass(slots=True)
class _Model:
    versions: list[VersionEntry] = field(default_factory=list)


class ModelRepository:
    """Loads at the start; answers `get` from any thread."""

    def __init__(self, config: ServerConfig) -> None:
        """Finds the models. Raises NotFound when the repository or a model is not there, ConfigError."""
        self._config = config
        root = config.model_repository
        if not root.is_dir():
            raise NotFound(
                f"model repository {str(root)!r} is not a folder; publish a model there first, or name another"
            )
        if config.store_dir.resolve().is_relative_to(root.resolve()):
            raise ConfigError(
                f"store {str(config.store_dir)!r} lies inside the model repository; choose a folder outside",
                field="store",
            )
        there = next(place for place in (config.store_dir, *config.store_dir.parents) if place.exists())
        if not there.is_dir():
            raise ConfigError(f"store {str(config.store_dir)!r}: {str(there)!r} is not a folder", field="store")
        found = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        for name in config.models:
            if name not in found:
                close = difflib.get_close_matches(name, found, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(found) or 'none'}"
                raise NotFound(f"model repository {str(root)!r} has no model {name!r}{hint}")
        self._names = list(dict.fromkeys(config.models)) or [name for name in found if _is_model(root / name)]
        self._models = {name: _Model([VersionEntry(name, "")]) for name in self._names}
        self._loaded_all = threading.Event()
        self._stopping = False
        self._closing = False

    @property
    def names(self) -> list[str]:
        """The models to serve."""
        return list(self._names)

    @property
    def is_loaded(self) -> bool:
        """Whether loading has ended, for better or worse."""
        return self._loaded_all.is_set()

    def load_all(self) -> None:
        """Loads every model, one after the other. One that fails is UNAVAILABLE with the reason; nothing is raised."""
        for name in self._names:
            if self._stopping:
                break
            self._load_model(name)
        self._loaded_all.set()

    def index(self) -> list[VersionEntry]:
        """Every version with its state."""
        return [entry for model in self._models.values() for entry in model.versions]

    def loaded(self) -> Iterator[LoadedModel]:
        """Every version that is ready."""
        return iter([entry.loaded for entry in self.index() if entry.loaded is not None])

    def is_ready(self) -> bool:
        """Whether the server takes requests; see `strict_readiness`."""
        if not self.is_loaded or self._stopping:
            return False
        states = [entry.state == "READY" for entry in self.index()]
        return (all(states) if self._config.strict_readiness else any(states)) and bool(states)

    def get(self, name: str, version: str = "", routing_key: str = "") -> LoadedModel:
        """The version asked for, or the one that is served. Raises NotFound, or Unavailable with the reason.

        routing_key: while a version is a canary, the requests of a fraction of the keys go to it.
        """
        model = self._models.get(name)
        if model is None:
            raise NotFound(f"Request for unknown model: {name[:200]!r} is not found")
        if not version:
            entry = model.versions[-1]
        else:
            for entry in model.versions:
                if entry.version == version:
                    break
            else:
                raise NotFound(f"Request for unknown model: {name!r} version {version[:40]} is not found")
        if entry.loaded is None or self._closing:
            reason = f": {entry.reason}" if entry.reason else ""
            state = "is shutting down" if self._closing else f"is not ready ({entry.state}){reason}"
            raise Unavailable(f"model {name!r} {state}")
        return entry.loaded

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Whether a request for it would be taken; False for a model that there is not."""
        try:
            self.get(name, version)
        except (NotFound, Unavailable):
            return False
        return True

    def versions(self, name: str) -> list[str]:
        """The versions of a model that are ready."""
        return [entry.version for entry in self._models[name].versions if entry.loaded is not None]

    def loaded_versions(self, name: str) -> list[LoadedModel]:
        """Every ready version of a model. Raises NotFound, or Unavailable when there is none."""
        self.get(name)
        return [entry.loaded for entry in self._models[name].versions if entry.loaded is not None]

    def load(self, name: str) -> None:
        """Looks into the model's folder now and returns when what is there is served. Raises why it is not."""
        raise Unsupported(f"load of {name!r} is not supported yet")

    def unload(self, name: str) -> None:
        """Drains and closes a model until it is loaded again; its memory is given back."""
        raise Unsupported(f"unload of {name!r} is not supported yet")

    def rollback(self, name: str, *, to: str = "", steps: int = 1) -> dict[str, JsonValue]:
        """Serves a retained snapshot again, and holds what came after it. Returns `snapshots(name)`.

        to: an id or "V.S"; without one, `steps` back. Raises NotFound naming what is there, Conflict during a canary.
        """
        raise Unsupported(f"rollback of {name!r} is not supported yet")

    def resume(self, name: str) -> dict[str, JsonValue]:
        """Ends every hold, pause and pin: the newest good snapshot is served, and the folder is followed."""
        raise Unsupported(f"resume of {name!r} is not supported yet")

    def pause(self, name: str) -> dict[str, JsonValue]:
        """Takes nothing new until `resume`."""
        raise Unsupported(f"pause of {name!r} is not supported yet")

    def pin(self, name: str, to: str = "") -> dict[str, JsonValue]:
        """Serves a retained snapshot, the present one without `to`, until `resume`."""
        raise Unsupported(f"pin of {name!r} is not supported yet")

    def canary(self, name: str, *, fraction: float, to: str = "") -> dict[str, JsonValue]:
        """Answers a fraction of the requests from a held or retained snapshot, or from the next good arrival."""
        raise Unsupported(f"canary of {name!r} is not supported yet")

    def promote(self, name: str) -> dict[str, JsonValue]:
        """Serves the canary to everybody. Raises Conflict when there is none."""
        raise Unsupported(f"promote of {name!r} is not supported yet")

    def stop_canary(self, name: str) -> dict[str, JsonValue]:
        """Ends the canary and holds its snapshot. Raises Conflict when there is none."""
        raise Unsupported(f"stop_canary of {name!r} is not supported yet")

    def allow(self, name: str, version: str, inputs: Sequence[str]) -> dict[str, JsonValue]:
        """Allows a version although these inputs or outputs are gone or of another type."""
        raise Unsupported(f"allow of {name!r} is not supported yet")

    def snapshots(self, name: str) -> dict[str, JsonValue]:
        """What is served, retained, held, quarantined and waited for; docs/live.md describes it."""
        raise Unsupported(f"snapshots of {name!r} are not supported yet")

    def update_counters(self, name: str) -> UpdateCounters:
        """What the updates of a model did so far."""
        return UpdateCounters()

    def stop_loading(self) -> None:
        """Loads no further model, and is not ready from now on; requests to loaded models are still answered."""
        self._stopping = True

    def close(self, timeout_s: float) -> None:
        """Closes every model; what waits in a queue is worked off for at most `timeout_s`."""
        self._stopping = self._closing = True
        deadline = time.monotonic() + timeout_s
        for entry in self.index():
            if entry.loaded is not None:
                if entry.loaded.close(max(0.0, deadline - time.monotonic())) and entry.store is not None:
                    entry.store.close()
                # The web framework may keep this repository alive to the end of the process; tables must not wait.
                entry.loaded = None
                entry.state = "UNAVAILABLE"

    def _load_model(self, name: str) -> None:
        folder = self._config.model_repository / name
        store = self._config.store_dir / name
        try:
            config = read_model_config(folder)
            found = [int(entry.name) for entry in folder.iterdir() if entry.is_dir() and _VERSION.fullmatch(entry.name)]
            if not found:
                raise NotFound(f"{folder} has no version: no folder with a number for a name; publish one")
            versions = config.choose_versions(found)
        except Exception as error:  # as below: the others are served
            self._fail(VersionEntry(name, ""), error)
            return
        entries = [VersionEntry(name, str(version)) for version in versions]
        self._models[name].versions = entries
        for entry in entries:
            try:
                entry.loaded, entry.store = _load_alone(config, folder / entry.version, store / entry.version)
                entry.state = "READY"
            except Exception as error:  # whatever is wrong with one model, the others are served
                self._fail(entry, error)
        if all(entry.loaded for entry in entries):  # else the store of an older version may be wanted again
            try:
                remove_stale_stores(store, {entry.version for entry in entries})
            except OSError as error:
                logger.warning("%s: stores of older versions stay: %s", store, error)

    def _fail(self, entry: VersionEntry, error: Exception) -> None:
        entry.state = "UNAVAILABLE"
        entry.reason = str(error) or type(error).__name__
        if not entry.version:
            self._models[entry.model].versions = [entry]
        label = f"{entry.model}/{entry.version}" if entry.version else entry.model
        known = isinstance(error, EmberlineError | OSError)
        logger.error(
            "%s: UNAVAILABLE: %s; no older version is tried", label, entry.reason, exc_info=None if known else error
        )


def _is_model(folder: Path) -> bool:
    return (folder / CONFIG).exists() or any(_VERSION.fullmatch(entry.name) for entry in folder.iterdir())


def _load_alone(config: ModelConfig, path: Path, store_dir: Path) -> tuple[LoadedModel, TieredStore]:
    """Opens a version, fills its store and lets it through the gate; nothing stays open when that fails."""
    published = open_version(path)
    store_dir.mkdir(parents=True, exist_ok=True)
    snapshot = Snapshot.of_version(published, published.graph())
    store = TieredStore.open(store_dir, published.tables, dram_bytes=config.options.dram_bytes)
    try:
        store.load(published, log_progress(f"{config.name}/{path.name}"))
        model = LoadedModel(config, published, store, snapshot)
        try:
            claims = Claims.of_version(published.manifest)
            gate(model.parts, None, snapshot, published.golden(), None, options=config.options, claims=claims)
        except BaseException:
            model.close(0.0)
            raise
    except BaseException:
        store.close()
        raise
    return model, store
