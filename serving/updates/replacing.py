"""Takes a version into a store of its own: loaded beside what is served, judged, then the requests move over.

`budgets` describes how the DRAM budget moves with them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from serving.engine.model import LoadedModel
from serving.engine.validation import Claims
from serving.model_config.pbtxt import ModelConfig
from serving.updates.agreement import Agreed, Outdated
from serving.updates.applying import agree, check_version_signature, collect_kept, facts_after, without_refusal
from serving.updates.budgets import wait_filled, wait_hit_rate
from serving.updates.lineage import Take
from serving.updates.live_model import LiveModel
from serving.updates.loading import DRAIN_S, mount_version, unmount, wants_warm
from serving.updates.mount import MountedStore
from serving.updates.stale_stores import remove_stale_stores
from storage.checkpoint import open_version
from storage.errors import ReadError
from storage.parallel import load_threads

logger = logging.getLogger("emberline.serving")


def take_version(model: LiveModel, config: ModelConfig, take: Take, *, side: bool = False) -> None:
    """Verifies, loads, judges, records and shows a version. side: it is one more, by the version policy."""
    found = take.found
    started = time.monotonic()
    with model.lock:
        before = None if side or model.default is None else model.default
    model.step("found")
    # Each file is hashed as it is read, all of them before a request sees the version. All cores are used only where no
    # requests are answered meanwhile.
    threads = load_threads() if model.default is None else 1
    published = open_version(found.path, verify=False, threads=threads)
    if published.snapshot != found.snapshot:
        raise ReadError(f"{found.path} was replaced while it was read; it is looked at again")
    if not side:
        check_version_signature(model, config, published)
    model.versions.keep(published)
    model.check_stop()
    served = None if before is None else before.view.current
    recent = None if served is None else served.loaded.model.recent
    if before is not None and found.erased_unix_ms > before.content.published_unix_ms:
        recent = None  # they may be requests of whom is to be forgotten, and end with the model that goes
    mount = mount_version(model, config, published, recent)
    (base,) = mount.view.entries
    try:
        model.step("verified")
        model.step("staged")
        report = base.loaded.model.judge(
            base.snapshot,
            published.golden(),
            Claims.of_version(published.manifest),
            config.options,
            None if served is None else served.loaded.model,
        )
        model.step("validated")
        model.check_stop()
        model.budget.serve(mount.store)
        if model.default is not None or wants_warm(config):  # no request waits while another version answers
            wait_filled(mount.store, model.check_stop)
        else:
            wait_hit_rate(model.name, mount.store, config.options, model.check_stop)
        own = "" if served is None else served.id
        agreed = Agreed() if side else agree(model, None, own, base.snapshot, take)
        with model.lock:
            facts = model.facts
            if not side and before is not None:
                if (
                    model.default is not before
                    or before.view.current is not served
                    or facts.paused
                    or facts.pinned
                    or model.canary_entry() is not None
                ):
                    raise Outdated
                facts = facts_after(facts, take, base.id)
            else:
                facts = without_refusal(facts, take)
            facts = agreed.install(facts)
            trial = not side and before is not None and facts.canary is not None and facts.canary.snapshot == base.id
            default = model.default if side or trial else mount
            model.commit(facts=facts, mounts=(*model.mounts, mount), default=default or mount, at=agreed.at)
            agreed.done()
    except BaseException:
        unmount(model, mount, DRAIN_S)
        if model.mounts and not model.stopping.is_set():
            remove_stores(model)
        raise
    model.counters.versions_loaded += 1
    stats = mount.store.stats()
    logger.info(
        "%s/%d: ready in %.1f s: snapshot %s, %d rows, %d in DRAM (%.1f MiB), %d session(s), golden requests "
        "within %.2g; %s",
        model.name,
        published.version,
        time.monotonic() - started,
        published.snapshot,
        stats.rows["ssd"],
        stats.rows["dram"],
        stats.bytes["dram"] / 2**20,
        config.sessions,
        report.golden_difference,
        report.guard,
    )
    remove_stores(model)


def retire(model: LiveModel, mounts: list[MountedStore], successors: Mapping[int, LoadedModel] | None = None) -> None:
    """Takes mounts out of service: their late requests go to what is served, then they are drained and closed.

    successors: models that get the late requests instead, by version.
    """
    with model.lock:
        assert model.default not in mounts
        successor = None if model.default is None else model.default.view.current.loaded.model
        model.commit(mounts=[mount for mount in model.mounts if mount not in mounts])
    for mount in mounts:
        thread = threading.Thread(
            target=_retire,
            args=(model, mount, successor, successors or {}),
            name=f"emberline-retire-{model.name}",
            daemon=True,
        )
        with model.lock:
            try:
                thread.start()
            except RuntimeError as error:  # no thread is left on the machine
                logger.warning("%s: %s is closed before anything else is done: %s", model.name, mount.folder, error)
            else:
                model.retiring.append(thread)
                continue
        _close(model, mount, successor, successors or {})


def remove_stores(model: LiveModel) -> None:
    """Deletes the stores that no mount has, and what is kept for no mount."""
    with model.lock:
        try:
            # Under the lock: no store may be opened between the look and the deletion.
            remove_stale_stores(model.store_root, {mount.folder.name for mount in model.mounts} | model.open_folders)
        except OSError as error:
            logger.warning("%s: stores of older versions stay: %s", model.store_root, error)
    collect_kept(model)


def _retire(
    model: LiveModel, mount: MountedStore, served: LoadedModel | None, successors: Mapping[int, LoadedModel]
) -> None:
    try:
        _close(model, mount, served, successors)
    finally:
        with model.lock:
            model.retiring.remove(threading.current_thread())


def _close(
    model: LiveModel, mount: MountedStore, served: LoadedModel | None, successors: Mapping[int, LoadedModel]
) -> None:
    for loaded in list(mount.loaded_versions.values()):
        successor = successors.get(loaded.version, served)
        if successor is not None:
            loaded.model.hand_over(successor)
    model.budget.retire(mount.store)
    while not unmount(model, mount, DRAIN_S):
        logger.warning("%s: the store of %s stays open: a batch is still at work", model.name, mount.folder)
    logger.info("%s: version %d is closed", model.name, mount.view.current.snapshot.version)
    if not model.stopping.is_set():
        remove_stores(model)
