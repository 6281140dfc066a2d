"""Works out operators' commands on the shadow of a model; `taking_shadows` loads what is not staged yet."""

from __future__ import annotations

import time

from serving.protocol.signature import ModelSignature
from serving.updates.catalog import Catalog, Found, ModelFolder
from serving.updates.change import Change, carry_out
from serving.updates.lineage import names
from serving.updates.live_model import LiveModel
from serving.updates.mount import MountedStore, StagedSnapshot, StoreView
from serving.updates.signatures import signature_faults
from serving.updates.state import ShadowState
from storage.checkpoint import PublishedVersion, open_version
from storage.errors import ConfigError, Conflict, InvalidInput, NotFound, Unavailable


def start_shadow(model: LiveModel, *, to: str, share: float, top_k: int, for_s: float = 0.0) -> None:
    """Scores a share of the requests on a snapshot or version too, from now on; it answers nobody.

    to: a snapshot that is staged, a delta of the served version in the folder, or another version. That of a running
    shadow changes its share and its time, and goes on comparing. for_s: 0 for no end. Raises InvalidInput, NotFound, or
    Conflict naming the inputs that are in the way.
    """
    until_ms = time.time_ns() // 1_000_000 + round(for_s * 1000) if for_s else 0
    wanted = ShadowState(to=to, share=share, top_k=top_k, until_unix_ms=until_ms)
    with model.lock:
        mount = _served(model)
        _refuse_canary(model)
        found = _running(model, wanted) or _staged(model, mount, wanted)
        served = mount.view.current.snapshot
    if found is None:
        catalog = ModelFolder(model.folder).scan({served.version: served.sequence})
        found = _published(model, mount, catalog, wanted)
    with model.lock:
        if model.default is not mount:
            raise Unavailable(f"model {model.name!r}: another version is served since just now; try again")
        _refuse_canary(model)  # one may have begun while the folder was looked at
        model.shadowing.ended = ""
        model.commit(facts=model.facts.model_copy(update={"shadow": found}))


def _refuse_canary(model: LiveModel) -> None:
    """Raises Conflict where there is a canary or is to be one."""
    canary = model.facts.canary
    if canary is None:
        return
    waiting = f"{canary.to or 'what arrives next'} is to be a canary"
    what = "there is a canary" if model.canary_entry() else waiting
    raise Conflict(f"model {model.name!r}: {what}; promote or stop it first")


def stop_shadow(model: LiveModel) -> Change:
    """Ends the shadow, and frees what was loaded for it alone. A version that would be served next is held."""
    default, shadow, running = _served(model), model.facts.shadow, model.shadow_entry()
    if shadow is None:
        raise Conflict(f"model {model.name!r}: there is no shadow to stop")
    model.shadowing.ended = ""
    held = model.facts.held
    if running is not None and shadow.follows and running[0].is_hidden:
        version = running[1].snapshot.version
        if version > default.view.current.snapshot.version and not _why_not_by_policy(model, version):
            held = tuple(dict.fromkeys((*held, *_ids(running[0]))))
    return Change(model.facts.model_copy(update={"shadow": None, "held": held}), why="it was a shadow and was stopped")


def promote_shadow(model: LiveModel) -> None:
    """Serves the shadow to everybody. What was served after the snapshot that it was made from is held.

    Raises Conflict with the reason where it cannot be served.
    """
    with model.lock:
        default = _served(model)
        shadow, running = model.facts.shadow, model.shadow_entry()
        if shadow is None:
            raise Conflict(f"model {model.name!r}: there is no shadow to promote")
        if running is None:
            reason = shadow.error or "it is still being loaded"
            raise Conflict(f"model {model.name!r}: the shadow {shadow.to} cannot be served: {reason}")
        mount, entry = running
        if mount is not default:
            version = entry.loaded.version
            if reason := _why_not_by_policy(model, version) or _why_not_by_inputs(
                model, default, version, entry.loaded.model.signature
            ):
                raise Conflict(f"model {model.name!r}: the shadow {entry.name} cannot be served: {reason}")
    if mount is not default:
        # Not under the lock: the other store may have to let rows go first.
        model.budget.serve(mount.store)
    with model.lock:
        if model.shadow_entry() != running or model.default is not default:
            raise Conflict(f"model {model.name!r}: the shadow or what is served has changed just now; try again")
        carry_out(model, _promotion(model, default, mount, entry))


def _promotion(model: LiveModel, default: MountedStore, mount: MountedStore, entry: StagedSnapshot) -> Change:
    before = mount.view
    if entry in before.entries:
        view = before.at(before.entries.index(entry))
        if not mount.can_serve(view.served):
            raise Conflict(f"model {model.name!r}: {entry.name} is being merged and cannot be served")
    else:
        on = before.find(before.beside_on)
        assert on is not None, "nothing is merged past it"
        entries = (*before.entries[: on + 1], *before.beside)
        view = StoreView(entries, len(entries) - 1)
    gone = set(before.entries[: before.served + 1]) - set(view.entries[: view.served + 1])
    held = [each.id for each in before.entries if each in gone]
    if entry.loaded.version < default.view.current.loaded.version:
        held += _ids(default)
    through = {each.id for each in view.entries[: view.served + 1]}
    facts = model.facts.model_copy(
        update={
            "shadow": None,
            "held": tuple(dict.fromkeys(each for each in (*model.facts.held, *held) if each not in through)),
            "abandoned": tuple(each for each in model.facts.abandoned if each not in through),
            "quarantine": {key: r for key, r in model.facts.quarantine.items() if r.snapshot not in through},
        }
    )
    return Change(facts, {mount: view}, mount, why="a shadow was promoted in its place")


def _ids(mount: MountedStore) -> tuple[str, ...]:
    """Returns the snapshots of a mount, and that of its version, which may be merged into them."""
    return (mount.view.current.loaded.published.snapshot, *(entry.id for entry in mount.view.entries))


def _running(model: LiveModel, wanted: ShadowState) -> ShadowState | None:
    """Returns the shadow that runs with another share and time, if it is the one that is wanted."""
    shadow, running = model.facts.shadow, model.shadow_entry()
    if shadow is None or running is None or wanted.to not in (shadow.to, running[1].id, running[1].name):
        return None
    kept = {"to": shadow.to, "snapshot": shadow.snapshot, "follows": shadow.follows, "deltas": shadow.deltas}
    return wanted.model_copy(update=kept)


def _staged(model: LiveModel, mount: MountedStore, wanted: ShadowState) -> ShadowState | None:
    position = mount.view.find(wanted.to)
    if position is not None:
        if position == mount.view.served:
            raise InvalidInput(f"model {model.name!r}: {wanted.to} is what is served", field="to")
        if mount.can_serve(position):
            return wanted.model_copy(update={"snapshot": mount.view.entries[position].id})
    for other in model.mounts:
        version = other.view.current.loaded.published
        if other is not mount and wanted.to in (str(version.version), version.snapshot):
            return wanted.model_copy(update={"snapshot": version.snapshot, "follows": True})
    return None


def _published(model: LiveModel, mount: MountedStore, catalog: Catalog, wanted: ShadowState) -> ShadowState:
    """Returns the wanted state for something in the folder that is to be loaded. Raises NotFound, Conflict."""
    served = mount.view.current.loaded.published
    for found in catalog.versions.values():
        if wanted.to in names(found):
            if found.snapshot == served.snapshot:
                raise InvalidInput(
                    f"model {model.name!r}: version {found.version} is what is served; name one of its snapshots, such "
                    f"as {_staged_names(mount)}",
                    field="to",
                )
            _check_found(model, mount, found)
            return wanted.model_copy(update={"follows": True})
        if any(wanted.to in names(delta) for delta in found.deltas):
            return wanted
    staged = {entry.id for entry in mount.view.entries}
    deltas = [delta.name for delta in catalog.deltas(served.version) if delta.snapshot not in staged]
    numbers = ", ".join(map(str, catalog.versions)) or "none"
    raise NotFound(
        f"model {model.name!r}: no snapshot or version {wanted.to[:80]!r} that a shadow could score; served is "
        f"{mount.view.current.name}, staged {'are' if len(staged) > 1 else 'is'} {_staged_names(mount)}, published "
        f"deltas are {', '.join(deltas[-20:]) or 'none'}, and there are the versions {numbers}"
    )


def _check_found(model: LiveModel, mount: MountedStore, found: Found) -> None:
    """Raises Conflict when a version in the folder cannot score the requests of the served one."""
    assert model.config is not None
    if found.error is not None:
        raise Conflict(f"model {model.name!r}: version {found.version} cannot be read: {found.error}")
    signature = version_signature(model, open_version(found.path, verify=False))
    if reason := _why_not_by_inputs(model, mount, found.version, signature):
        raise Conflict(f"model {model.name!r}: version {found.version} cannot be the shadow: {reason}")


def version_signature(model: LiveModel, published: PublishedVersion) -> ModelSignature:
    """Returns the inputs and outputs that a version has with the model's configuration."""
    assert model.config is not None
    manifest = published.manifest
    size = model.config.max_batch_size or manifest.max_batch_size
    return ModelSignature.of(model.config.name, published.spec, manifest.graph.outputs, size)


def _why_not_by_inputs(model: LiveModel, mount: MountedStore, version: int, signature: ModelSignature) -> str:
    """Returns the inputs and outputs by which requests of the served version do not fit; "" when they do."""
    allowed = model.facts.allowed.get(str(version), ())
    served = mount.view.current.loaded.model.signature
    faults = {name: text for name, text in signature_faults(served, signature).items() if name not in allowed}
    if not faults:
        return ""
    hint = f"emberline allow {model.name} --version {version} --input {' --input '.join(sorted(faults))}"
    return f"{'; '.join(faults.values())}; requests do not fit it. Accept that with `{hint}`"


def _why_not_by_policy(model: LiveModel, version: int) -> str:
    """Returns why the version policy would not let a version be served; "" when it would."""
    assert model.config is not None
    there = {number for number in ModelFolder(model.folder).scan().versions if number <= version}
    try:
        chosen = model.config.choose_versions({*there, version})
    except ConfigError as error:
        return str(error)
    if version in chosen:
        return ""
    return f"the version_policy in config.pbtxt does not choose version {version} but {chosen}; change it first"


def _staged_names(mount: MountedStore) -> str:
    entries = enumerate(mount.view.entries)
    there = [entry.name for at, entry in entries if at != mount.view.served and mount.can_serve(at)]
    return ", ".join(there) or "no other snapshot"


def _served(model: LiveModel) -> MountedStore:
    if model.default is None:
        reason = model.why_not()
        raise Unavailable(f"model {model.name!r} serves nothing{f': {reason}' if reason else ''}")
    return model.default
