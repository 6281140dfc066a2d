"""Takes a delta, or a version that equals what is served, onto a mount; all before the commit is invisible."""

from __future__ import annotations

import logging
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

from serving.engine.validation import Claims, ValidationReport
from serving.model_config.pbtxt import ModelConfig
from serving.pipeline.snapshot import Snapshot
from serving.updates import refusals
from serving.updates.agreement import Agreed, Outdated
from serving.updates.catalog import Found
from serving.updates.dense_weights import weights_to_serve
from serving.updates.keep import collect, keep, kept_folder
from serving.updates.lineage import Take, names
from serving.updates.live_model import LiveModel
from serving.updates.mount import LoadedVersion, MountedStore, StagedSnapshot, StoreView
from serving.updates.signatures import check_signature
from serving.updates.state import CanaryState, ModelState
from storage.checkpoint import PublishedDelta, PublishedVersion, open_delta
from storage.errors import CheckpointError, ReadError

logger = logging.getLogger("emberline.serving")


def take_delta(model: LiveModel, mount: MountedStore, take: Take) -> None:
    """Verifies, stages, judges, records and shows a delta. On failure it raises, and nothing of the delta stays."""
    found = take.found
    started = time.monotonic()
    view = mount.view
    model.step("found")
    delta = open_delta(found.path)
    _check_same(delta, found)
    _check_tables(delta, mount)
    model.step("verified")
    with model.taking(delta.snapshot):
        entry, report = _stage_and_show(model, mount, view, take)
    _count(model, entry)
    logger.info(
        "%s: %s is visible after %.0f ms (%.0f ms of work): %d rows, %d removed; golden requests within %.2g; %s",
        model.name,
        entry.snapshot,
        entry.visible_ms,
        (time.monotonic() - started) * 1e3,
        entry.rows,
        entry.removed,
        report.golden_difference,
        report.guard,
    )
    drop_entries(model)


def _stage_and_show(
    model: LiveModel, mount: MountedStore, view: StoreView, take: Take
) -> tuple[StagedSnapshot, ValidationReport]:
    """Stages, judges and shows a delta. Returns the snapshot that it becomes, and how it passed the validation."""
    found = take.found
    loaded = view.current.loaded
    kept = kept_folder(model.store_root, found.snapshot)
    overlay: int | None = None
    try:
        # It is opened once more, from where it is kept: the repository may drop its own copy at any moment. Every file
        # is hashed again when it is read, so they are not all hashed here.
        delta = open_delta(keep(found.path, kept), verify=False)
        _check_same(delta, found)
        model.step("linked")
        model.check_stop()
        overlay = mount.store.stage(delta)
        model.step("staged")
        model.check_stop()
        entry = delta_entry(mount, view, loaded, delta, overlay, found.path)
        report = judge_delta(model, loaded, entry, delta, overlay)
        model.step("validated")
        agreed = agree(model, mount, view.current.id, entry.snapshot, take)
        entry = timed(model, entry, found.path)
        append_entry(model, mount, view, entry, take, agreed)
        return entry, report
    except BaseException:
        if overlay is not None:
            mount.store.discard(overlay)
        shutil.rmtree(kept, ignore_errors=True)
        raise


def judge_delta(
    model: LiveModel,
    loaded: LoadedVersion,
    entry: StagedSnapshot,
    delta: PublishedDelta,
    overlay: int | None,
    *,
    live: bool = True,
) -> ValidationReport:
    """Validates a delta's snapshot. live: also by the live guard, against what is served."""
    golden = delta.golden(loaded.model.parts.spec, loaded.model.parts.graph)
    assert model.config is not None
    claims = Claims(delta.manifest.dense_fingerprint) if overlay is None else Claims.of_delta(delta.manifest, overlay)
    return loaded.model.judge(entry.snapshot, golden, claims, model.config.options, loaded.model if live else None)


def delta_entry(
    mount: MountedStore, view: StoreView, loaded: LoadedVersion, delta: PublishedDelta, overlay: int, origin: Path
) -> StagedSnapshot:
    """Returns the snapshot that a staged delta makes of what `view` serves."""
    manifest = delta.manifest
    weights, needs = weights_to_serve(delta, loaded, view.current)
    snapshot = Snapshot(
        manifest.snapshot,
        manifest.version,
        manifest.sequence,
        view.mask(view.served) | 1 << overlay,
        loaded.graph.with_weights(weights),
        manifest.created_unix_ms,
        origin,
        manifest.events,
        manifest.events_since,
    )
    stats = mount.store.overlay_stats()[overlay]
    rows = sum(table.rows for table in manifest.tables)
    removed = sum(table.removed for table in manifest.tables)
    covered = view.current.covered_by_next()
    sizes = (rows, removed, stats.bytes)
    return StagedSnapshot(snapshot, loaded, "delta", overlay, *sizes, covered, dense_needs=needs)


def drop_entries(model: LiveModel) -> None:
    """Drops snapshots that were replaced: their kept files now, their overlays once no batch uses them."""
    model.merge_wake.set()
    collect_kept(model)


def collect_kept(model: LiveModel) -> None:
    """Deletes kept deltas and versions that no mount needs for a restart."""
    with model.lock:
        if model.stopping.is_set():
            return  # its mounts are being closed: they do not say what is needed
        entries = [entry for mount in model.mounts for entry in (*mount.view.entries, *mount.view.beside)]
        wanted = {each for entry in entries for each in (entry.id, *entry.dense_needs)}
        wanted.update(model.facts.shadow.deltas if model.facts.shadow is not None else ())
        collect(model.store_root, wanted | model.keeping)
        versions = {loaded.published.snapshot for mount in model.mounts for loaded in mount.loaded_versions.values()}
        model.versions.collect(versions | {mount.content.id for mount in model.mounts} | model.keeping)
    model.step("collected")


def check_version_signature(model: LiveModel, config: ModelConfig, published: PublishedVersion) -> None:
    """Raises SignatureError when clients of the served version could not use this one."""
    from serving.protocol.signature import ModelSignature

    with model.lock:
        served = None if model.default is None else model.default.view.current.loaded.model.signature
        allowed = model.facts.allowed.get(str(published.version), ())
    if served is None:
        return
    manifest = published.manifest
    size = config.max_batch_size or manifest.max_batch_size
    new = ModelSignature.of(config.name, published.spec, manifest.graph.outputs, size)
    check_signature(served, new, published.version, allowed)


def agree(model: LiveModel, mount: MountedStore | None, own: str, snapshot: Snapshot, take: Take) -> Agreed:
    """Waits until the other replicas may serve a snapshot too, if it is for the requests without a version.

    mount: the one that it was staged on; None for one of its own. own: the snapshot that is served meanwhile; "" for
    none. Raises Outdated, Stopped, and EmberlineError when another replica refuses it.
    """
    with model.lock:
        if mount is not None and mount is not model.default:
            return Agreed()

    def after() -> tuple[ModelState, str]:
        with model.lock:
            facts = on_trial(model, facts_after(model.facts, take, snapshot.id), snapshot.id)
        is_trial = facts.canary is not None and facts.canary.snapshot == snapshot.id
        return facts, own if is_trial else snapshot.id

    def check() -> None:
        model.check_stop()
        if mount is not None and mount.store.ssd.damage.found:
            raise Outdated  # another store has to take its place first

    agreed = model.agreement.agree(snapshot, own, after, check)
    if agreed.is_alone:
        return replace(agreed, install=lambda facts: on_trial(model, facts, snapshot.id))
    return agreed


def append_entry(
    model: LiveModel, mount: MountedStore, view: StoreView, entry: StagedSnapshot, take: Take, agreed: Agreed
) -> None:
    """Commits a snapshot on top of what `view` serves, or as the canary. It replaces those above, but for a shadow.

    Raises Outdated when something else is served meanwhile, StoreError when the state cannot be written.
    """
    with model.lock:
        facts = model.facts
        now = mount.view
        if (
            mount.closed
            or mount not in model.mounts
            or now.current.id != view.current.id
            or facts.paused
            or facts.pinned
            or model.canary_entry() is not None
            or (mount is model.default and entry.id in facts.held and not _is_wanted_canary(facts, take))
        ):
            raise Outdated
        kept, above = now.entries[: now.served + 1], now.entries[now.served + 1 :]
        now = _kept_beside(model, now, above)
        # The holds and the canary are those of the mount that answers requests without a version.
        facts = facts_after(facts, take, entry.id) if mount is model.default else without_refusal(facts, take)
        facts = agreed.install(facts)
        trial = mount is model.default and facts.canary is not None and facts.canary.snapshot == entry.id
        view = replace(now, entries=(*kept, entry), served=now.served + (not trial))
        model.commit(facts=facts, views={mount: view}, at=agreed.at)
        agreed.done()


def _kept_beside(model: LiveModel, view: StoreView, above: tuple[StagedSnapshot, ...]) -> StoreView:
    """Returns a view that keeps beside the chain what the shadow needs of the snapshots above the served one."""
    shadow = model.shadow_entry()
    ids = [entry.id for entry in above]
    needed = view.beside_on or ("" if shadow is None else shadow[1].id)
    if needed not in ids:
        return view
    return replace(view, beside=(*above[: ids.index(needed) + 1], *view.beside), beside_on=view.current.id)


def facts_after(facts: ModelState, take: Take, snapshot: str) -> ModelState:
    """Returns the facts once something new is taken: what is held, on trial and refused."""
    facts = without_refusal(facts, take)
    wanted = facts.canary is not None and facts.canary.snapshot is None and _is_wanted_canary(facts, take)
    changes: dict[str, object] = {}
    if wanted:
        # The operator asked for it by name: what was abandoned with it may be taken again too, and what is held stays
        # held.
        again = {snapshot, *take.found.ancestors}
        changes["abandoned"] = tuple(each for each in facts.abandoned if each not in again)
    elif take.clears_holds:
        # They are never taken again: at a later rollback they would look new.
        changes.update(abandoned=(*facts.abandoned, *facts.held), held=())
    if facts.canary is not None and facts.canary.snapshot is None and (wanted or not facts.canary.to):
        changes["canary"] = CanaryState(fraction=facts.canary.fraction, snapshot=snapshot)
    return facts.model_copy(update=changes)


def on_trial(model: LiveModel, facts: ModelState, snapshot: str) -> ModelState:
    """Returns the facts with a snapshot as the canary, where updates are judged by their live AUC.

    It is not where nothing is served yet or an operator has decided. Call it under the model's lock.
    """
    options = None if model.config is None else model.config.options
    if options is None or options.live_auc_fraction == 0 or model.feedback.window is None:
        return facts
    # A shadow is of one replica, and says nothing about what all of them serve.
    has_shadow = facts.shadow is not None and model.judges is None
    if model.default is None or facts.canary is not None or has_shadow:
        return facts
    return facts.model_copy(update={"canary": CanaryState(fraction=options.live_auc_fraction, snapshot=snapshot)})


def without_refusal(facts: ModelState, take: Take) -> ModelState:
    """Returns the facts without the refusal of what is taken: it was repaired meanwhile, if it was refused before."""
    return facts.model_copy(update={"quarantine": refusals.without(facts.quarantine, take.found)})


def _is_wanted_canary(facts: ModelState, take: Take) -> bool:
    return facts.canary is not None and facts.canary.to in names(take.found)


def _check_same(delta: PublishedDelta, found: Found) -> None:
    """Raises ReadError unless the delta is the one that was decided about."""
    if delta.manifest.digest != found.key:
        raise ReadError(f"{found.path} was replaced while it was read; it is looked at again")


def _check_tables(delta: PublishedDelta, mount: MountedStore) -> None:
    own = {spec.name: spec.dim for spec in mount.store.tables}
    for spec in delta.tables:
        if own.get(spec.name) != spec.dim:
            raise CheckpointError(
                f"{delta.path}: table {spec.name!r} of dim {spec.dim} is not one of the version's, which are {own}"
            )


def timed(model: LiveModel, entry: StagedSnapshot, path: Path) -> StagedSnapshot:
    # A rename changes the time of the folder's inode: that is when it appeared.
    try:
        appeared_ns = os.stat(path).st_ctime_ns
    except OSError:
        appeared_ns = time.time_ns()
    visible_ms = max(0.0, (time.time_ns() - max(appeared_ns, model.free_since_ns)) / 1e6)
    return replace(entry, visible_ms=round(visible_ms, 3))


def _count(model: LiveModel, entry: StagedSnapshot) -> None:
    counters = model.counters
    counters.deltas_applied += 1
    counters.last_visible_ms = entry.visible_ms
    counters.last_delta_rows = entry.rows
