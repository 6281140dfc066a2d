"""Loads what is to be the shadow of a model and is not staged yet: deltas beside the chain, or a version of its own.

The live guard does not judge it, because how its scores differ is what a shadow is to find out. What cannot be loaded
is not quarantined: the main arm decides for itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from serving.engine.validation import Claims
from serving.model_config.pbtxt import ModelConfig
from serving.updates.applying import collect_kept, delta_entry, judge_delta
from serving.updates.catalog import Catalog, Found, found_delta
from serving.updates.faults import is_machine_fault
from serving.updates.keep import keep, kept_folder
from serving.updates.lineage import Refuse, Take, Wait, names, next_delta
from serving.updates.live_model import LiveModel, Stopped
from serving.updates.loading import DRAIN_S, mount_version, unmount
from serving.updates.mount import MountedStore, StagedSnapshot, StoreView
from serving.updates.rebuilding import route
from serving.updates.situation import situation, stopped
from serving.updates.state import ModelState, ShadowState
from storage.checkpoint import open_delta, open_version
from storage.errors import Conflict, EmberlineError, EngineEnded, NotFound, ReadError

logger = logging.getLogger("emberline.serving")


def take_shadow(model: LiveModel, config: ModelConfig, catalog: Catalog) -> bool:
    """Loads the shadow that is wanted and not there; returns whether anything was done.

    What is wrong with it is noted in the model's state. Raises a fault of the machine, which is tried again.
    """
    with model.lock:
        shadow, mount = model.facts.shadow, model.default
        if shadow is None or shadow.error or mount is None or model.shadow_entry() is not None:
            return False
        if shadow.snapshot is not None:  # it was lost with a damaged store
            shadow = shadow.model_copy(update={"snapshot": None})
            model.commit(facts=model.facts.model_copy(update={"shadow": shadow}))
    found = next((each for each in catalog.versions.values() if shadow.to in names(each)), None)
    try:
        if found is not None:
            with model.attempts.noted(found, _again(model, shadow)), model.taking(found.snapshot):
                _take_version(model, config, shadow, found)
        else:
            _take_deltas(model, mount, shadow, catalog)
    except Stopped:
        raise
    except Exception as error:
        if is_machine_fault(error) or isinstance(error, ReadError):
            raise
        text = str(error) or type(error).__name__
        logger.error(
            "%s: %s cannot be the shadow: %s",
            model.name,
            shadow.to,
            text,
            exc_info=None if isinstance(error, EmberlineError) else error,
        )
        with model.lock:
            if model.facts.shadow == shadow:
                model.commit(facts=_with(model, shadow, error=f"{type(error).__name__}: {text}"))
        if isinstance(error, EngineEnded):
            model.attempts.forget()  # the state has recorded it; who asks for it again wants it tried
        collect_kept(model)
    return True


def is_shadow(model: LiveModel, found: Found) -> bool:
    """Returns whether it is a newer version that is the shadow, or becomes it: only an operator lets it be served.

    A version policy that names its versions is an operator's word.
    """
    shadow, default, config = model.facts.shadow, model.default, model.config
    if shadow is None or not shadow.follows or shadow.error or found.is_delta or default is None or config is None:
        return False
    if config.proto.version_policy.WhichOneof("policy_choice") == "specific":
        return False
    is_named = found.snapshot == shadow.snapshot or shadow.to in names(found)
    return is_named and found.version > default.view.current.snapshot.version


def next_of_shadow(
    model: LiveModel, catalog: Catalog, config: ModelConfig, side: Sequence[int], refused: Callable[[Found], bool]
) -> tuple[MountedStore, Take | Refuse] | None:
    """Returns the next delta of a version that is the shadow alone, with its mount; None when there is none.

    side: the versions that the policy wants beside the served one, which follow their deltas anyway. refused: as in
    Situation.
    """
    with model.lock:
        shadow, running = model.facts.shadow, model.shadow_entry()
        if shadow is None or running is None or running[0] is model.default:
            return None
        mount = running[0]
        is_hidden = mount.view.current.snapshot.version not in side
        if mount.is_hidden != is_hidden:  # requests may name it from now on, or not any more
            mount.is_hidden = is_hidden
            model.show()
        if not shadow.follows or not is_hidden or stopped(model, mount):
            return None
        # What is set aside for the requests is what a shadow is for.
        now = replace(situation(model, catalog, config, mount, refused), held=frozenset(), abandoned=frozenset())
        action = next_delta(catalog, now)
    return None if isinstance(action, Wait) else (mount, action)


def restore_shadow(model: LiveModel) -> None:
    """Hides the store of a shadow, or has the shadow loaded again if no store has it. Call it under the lock."""
    shadow, running = model.facts.shadow, model.shadow_entry()
    if running is not None:
        running[0].is_hidden = running[0] is not model.default
    elif shadow is not None:
        model.facts = model.facts.model_copy(update={"shadow": shadow.model_copy(update={"snapshot": None})})


def _take_version(model: LiveModel, config: ModelConfig, shadow: ShadowState, found: Found) -> None:
    """Loads a version into a store of its own, which no request can name."""
    published = open_version(found.path, verify=False, threads=1)
    if published.snapshot != found.snapshot:
        raise ReadError(f"{found.path} was replaced while it was read; it is looked at again")
    model.versions.keep(published)
    model.check_stop()
    mount = mount_version(model, config, published, None)
    mount.is_hidden = True
    (base,) = mount.view.entries
    try:
        claims = Claims.of_version(published.manifest)
        base.loaded.model.judge(base.snapshot, published.golden(), claims, config.options, None)
        model.check_stop()
        with model.lock:
            _check_wanted(model, shadow)
            facts = _with(model, shadow, snapshot=published.snapshot)
            model.commit(facts=facts, mounts=(*model.mounts, mount))
    except BaseException:
        unmount(model, mount, DRAIN_S)
        raise
    logger.info("%s: %s is the shadow, in a store of its own", model.name, base.snapshot)


def _take_deltas(model: LiveModel, mount: MountedStore, shadow: ShadowState, catalog: Catalog) -> None:
    """Stages the deltas that lead to the shadow from a snapshot of the chain; the chain goes on without them."""
    view = mount.view
    position, way = _way(model, mount, shadow, catalog)
    loaded = view.entries[position].loaded
    beside: list[StagedSnapshot] = []
    taken = (*(each.snapshot for each in way), *(entry.id for entry in view.entries))
    with model.attempts.noted(way[-1], _again(model, shadow)), model.taking(*taken):
        try:
            for found in way:
                model.check_stop()
                kept = kept_folder(model.store_root, found.snapshot)
                delta = open_delta(found.path if found.path == kept else keep(found.path, kept), verify=False)
                overlay = mount.store.stage(delta)
                below = StoreView((*view.entries[: position + 1], *beside), position + len(beside))
                try:
                    beside.append(delta_entry(mount, below, loaded, delta, overlay, found.path))
                except BaseException:
                    mount.store.discard(overlay)
                    raise
                judge_delta(model, loaded, beside[-1], delta, overlay, live=False)
            with model.lock:
                _check_wanted(model, shadow)
                on = mount.view.find(view.entries[position].id)
                if model.default is not mount or mount.closed or on is None:
                    raise Conflict("what it was made from was merged meanwhile; try it again")
                deltas = tuple(entry.id for entry in beside)
                now = replace(mount.view, beside=tuple(beside), beside_on=mount.view.entries[on].id)
                model.commit(facts=_with(model, shadow, snapshot=deltas[-1], deltas=deltas), views={mount: now})
        except BaseException:
            for entry in reversed(beside):
                if entry.overlay is not None:
                    mount.store.discard(entry.overlay)
            raise
    logger.info("%s: %s is the shadow, over the same store", model.name, beside[-1].snapshot)


def _way(model: LiveModel, mount: MountedStore, shadow: ShadowState, catalog: Catalog) -> tuple[int, list[Found]]:
    """Returns where the deltas to the shadow begin, and the deltas. Raises NotFound when none lead there."""
    view = mount.view
    known = [*catalog.deltas(view.current.snapshot.version), *_kept(model, shadow)]
    target = next((each.snapshot for each in known if shadow.to in names(each)), "")
    nearest = sorted(range(len(view.entries)), key=lambda at: (abs(at - view.served), -at))
    for position in nearest:
        way = route(view.entries[position].id, target, known) if mount.can_serve(position) and target else None
        if way:
            return position, way
    staged = ", ".join(entry.name for entry in view.entries)
    raise NotFound(
        f"no published deltas lead to {shadow.to} from a snapshot that is staged, which are {staged}; publish it as a "
        "version"
    )


def _kept(model: LiveModel, shadow: ShadowState) -> list[Found]:
    """Returns those of its deltas that the store has kept since they were staged before."""
    found = []
    for snapshot in shadow.deltas:
        path = kept_folder(model.store_root, snapshot)
        if path.is_dir():
            found.append(found_delta(path, open_delta(path, verify=False).manifest))
    return found


def _again(model: LiveModel, shadow: ShadowState) -> str:
    return f"emberline shadow {model.name} {shadow.to} --share {shadow.share:g}"


def _check_wanted(model: LiveModel, shadow: ShadowState) -> None:
    """Raises Stopped when an operator has ended the shadow meanwhile. Call it under the lock."""
    if model.facts.shadow != shadow:
        raise Stopped


def _with(model: LiveModel, shadow: ShadowState, **changes: object) -> ModelState:
    return model.facts.model_copy(update={"shadow": shadow.model_copy(update=changes)})
