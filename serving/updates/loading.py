"""Makes a mount of a published version: fills its store, starts its sessions. No request sees it yet."""

from __future__ import annotations

import ctypes
import logging
import shutil
import time
from pathlib import Path

from serving.engine.load_progress import log_progress
from serving.engine.model import LoadedModel
from serving.engine.recent import RecentRequests
from serving.model_config.pbtxt import ModelConfig
from serving.pipeline.precision import dense_graph
from serving.pipeline.snapshot import Snapshot
from serving.updates.live_model import LiveModel
from serving.updates.mount import LoadedVersion, MountedStore, StagedSnapshot
from storage.checkpoint import DenseGraph, PublishedVersion
from storage.errors import CorruptStoreError, EmberlineError
from storage.tiers.tiered import StoreLimits, TieredStore

logger = logging.getLogger("emberline.serving")

# Seconds that the sessions of a leaving version may work on; those of a version that no request has seen end at once.
DRAIN_S = 30.0
# A model that is ready when it is loaded waits this long for DRAM if it takes no more bytes than this: they are read by
# then. For a larger one the wait would gain nothing.
_FILL_S, _FILL_BYTES = 0.5, 16 << 20


def mount_version(
    model: LiveModel, config: ModelConfig, published: PublishedVersion, recent: RecentRequests | None
) -> MountedStore:
    """Makes a mount of its own for a version.

    Raises CheckpointError, StoreError or ConfigError; then nothing stays open.
    """
    folder = free_folder(model, published.version)
    graph = dense_graph(published, config.options)
    store = open_filled(model, config, published, folder)
    try:
        snapshot = Snapshot.of_version(published, graph)
        loaded = load_version(model, config, published, graph, store, snapshot, recent)
    except BaseException:
        close_store(model, folder, store)
        raise
    return MountedStore(folder, store, loaded, StagedSnapshot(snapshot, loaded, "same"))


def open_store(model: LiveModel, config: ModelConfig, published: PublishedVersion, folder: Path) -> TieredStore:
    """Opens or creates a store for a version's tables."""
    folder.mkdir(parents=True, exist_ok=True)
    options = config.options
    limits = StoreLimits(overlay_bytes=options.overlay_bytes)
    with model.lock:
        model.open_folders.add(folder.name)
    try:
        store = model.budget.open(
            lambda dram_bytes: TieredStore.open(folder, published.tables, dram_bytes=dram_bytes, limits=limits)
        )
        store.ssd.damage.listen(lambda _: model.on_damage())
        return store
    except BaseException:
        with model.lock:
            model.open_folders.discard(folder.name)
        raise


def close_store(model: LiveModel, folder: Path, store: TieredStore) -> None:
    """Closes a store; then its folder may be deleted or opened again.

    It counts as closed even when the disk fails: what was not written is in the store's log or in the published files.
    """
    try:
        store.close()
    except Exception as error:
        known = isinstance(error, EmberlineError | OSError)
        logger.error("%s: was closed without its last writes: %s", folder, error, exc_info=None if known else error)
    finally:
        model.budget.leave(store)
        with model.lock:
            model.open_folders.discard(folder.name)


def open_filled(model: LiveModel, config: ModelConfig, published: PublishedVersion, folder: Path) -> TieredStore:
    """Opens a store that holds exactly the version; one that is damaged or holds anything else is filled again."""
    try:
        store = _filled(model, config, published, folder)
        if store.at == published.snapshot:
            return store
        wrong = f"it holds the snapshot {store.at}, which is not known here"
        close_store(model, folder, store)
    except CorruptStoreError as error:
        wrong = str(error)
    logger.warning("%s: the store that was left there is filled again: %s", folder, wrong)
    shutil.rmtree(folder)
    return _filled(model, config, published, folder)


def _filled(model: LiveModel, config: ModelConfig, published: PublishedVersion, folder: Path) -> TieredStore:
    store = open_store(model, config, published, folder)
    try:
        fill(model, config, store, published)
    except BaseException:
        close_store(model, folder, store)
        raise
    return store


def fill(model: LiveModel, config: ModelConfig, store: TieredStore, published: PublishedVersion) -> None:
    """Puts a version's rows into a store; stops when the model is unloaded meanwhile.

    DRAM may be filled later, while requests are answered, unless the model is to be warm first.
    """
    report = log_progress(f"{model.name}/{published.version}")

    def progress(stage: str, table: str, done: int, rows: int) -> None:
        model.check_stop()
        report(stage, table, done, rows)

    size = sum(table.rows * table.row_bytes for table in published.tables)
    if store.dram_bytes is not None:
        size = min(size, store.dram_bytes)
        model.bring_hot_ids(published, store.ssd.path)
    wait_s = None if wants_warm(config) else _FILL_S if size <= _FILL_BYTES else 0.0
    store.load(published, progress, fill_timeout_s=wait_s)


def wants_warm(config: ModelConfig) -> bool:
    """Returns whether DRAM is filled before a model is ready.

    Sessions on GPUs need that too: their rows are taken from DRAM.
    """
    return config.options.ready_when == "warm" or any(place is not None for place in config.places)


def load_version(
    model: LiveModel,
    config: ModelConfig,
    published: PublishedVersion,
    graph: DenseGraph,
    store: TieredStore,
    snapshot: Snapshot,
    recent: RecentRequests | None,
) -> LoadedVersion:
    """Starts the sessions of a version on a store."""
    loaded = LoadedVersion(
        LoadedModel(
            config,
            published,
            store,
            snapshot,
            recent=recent,
            cores=model.cores,
            gpus=model.gpus,
            sessions=model.session_count(config),
            tap=model.feedback.follow(config.options),
        ),
        published,
        graph,
    )
    model.watch_releases(loaded)
    model.feedback.know(loaded.model.signature, published)
    return loaded


def observe_as_configured(model: LiveModel, config: ModelConfig) -> None:
    """Looks at requests to the loaded versions as the options say now."""
    tap = model.feedback.follow(config.options)
    with model.lock:
        found = [loaded for mount in model.mounts for loaded in mount.loaded_versions.values()]
    for loaded in found:
        loaded.model.tap = tap
        model.feedback.know(loaded.model.signature, loaded.published)


def free_folder(model: LiveModel, version: int) -> Path:
    """Returns a folder for a version's store that is not open."""
    with model.lock:
        taken = set(model.open_folders)
    names = (str(version), *(f"{version}-{number}" for number in range(2, 1000)))
    return model.store_root / next(name for name in names if name not in taken)


def unmount(model: LiveModel, mount: MountedStore, timeout_s: float) -> bool:
    """Ends a mount's sessions and closes its store; False when a session is still at work, and the store open."""
    mount.closed = True
    deadline = time.monotonic() + timeout_s
    ended = [
        loaded.model.close(max(0.0, deadline - time.monotonic())) for loaded in list(mount.loaded_versions.values())
    ]
    if not all(ended):
        return False
    with mount.merge_lock, mount.asked_lock:
        close_store(model, mount.folder, mount.store)
    mount.loaded_versions.clear()
    give_memory_back()
    return True


def give_memory_back() -> None:
    """Returns the memory of closed tables to the system; the allocator would keep it otherwise."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # another C library without this function
        return
