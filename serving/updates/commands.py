"""Works out operators' commands on one model, each as one change; none waits for an update.

Call the functions that return a change under the model's lock, and carry it out under the same: see `change`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from serving.model_config.instance_groups import MAX_SESSIONS
from serving.updates.change import Change
from serving.updates.live_model import LiveModel
from serving.updates.mount import MountedStore, StagedSnapshot
from serving.updates.state import BudgetState, CanaryState, SessionsState
from storage.checkpoint.deltas import DELTAS, sequence_name
from storage.errors import Conflict, InvalidInput, NotFound, Unavailable

_NAME = re.compile(r"[1-9][0-9]{0,17}(\.(0|[1-9][0-9]{0,17}))?")


def rollback(model: LiveModel, *, to: str = "", steps: int = 1) -> Change:
    """Serves a retained snapshot again; what came after it is held."""
    mount = _mount(model)
    _refuse_canary(model, "a rollback")
    view = mount.view
    position = _find(mount, to) if to else view.served - steps
    if not to and steps < 1:
        raise InvalidInput(f"steps is {steps}, expected 1 or more", field="steps")
    if position is None or position < 0 or not mount.can_serve(position):
        wanted = f"no snapshot {to[:80]!r} to go back to" if to else f"there is no snapshot {steps} back"
        raise NotFound(f"model {model.name!r}: {wanted}; {_there(mount)}")
    if position >= view.served:
        raise InvalidInput(
            f"model {model.name!r} serves {view.current.name}; {to[:80]!r} is not before it, so it is no "
            "rollback: use resume or pin",
            field="to",
        )
    gone = view.entries[position + 1 :]
    held = tuple(dict.fromkeys((*model.facts.held, *(entry.id for entry in gone))))
    facts = model.facts.model_copy(update={"held": held})
    return Change(facts, {mount: view.at(position)}, why="it was rolled back")


def resume(model: LiveModel) -> Change:
    """Ends holds, pauses and pins, and serves the newest snapshot that is staged.

    It also works while nothing is served, such as when the pinned snapshot is gone: then the newest version is loaded.
    """
    facts = model.facts.model_copy(update={"held": (), "paused": False, "pinned": False})
    if model.default is None and model.knows_facts and not model.stopping.is_set() and model.facts.is_bound:
        return Change(facts, forgives=True)
    mount = _mount(model)
    # A canary goes on: only `promote` may show it to everybody.
    running = model.canary_entry() is not None
    newest = mount.view.served if running else len(mount.view.entries) - 1
    return Change(facts, {mount: mount.view.at(newest)}, forgives=True)


def pause(model: LiveModel) -> Change:
    """Takes nothing new."""
    _mount(model)
    return Change(model.facts.model_copy(update={"paused": True}))


def pin(model: LiveModel, to: str = "") -> Change:
    """Serves a staged snapshot, the present one without `to`, and takes nothing new."""
    mount = _mount(model)
    view = mount.view
    position = _find(mount, to) if to else view.served
    if position is None or not mount.can_serve(position):
        raise NotFound(f"model {model.name!r}: no snapshot {to[:80]!r} to pin; {_there(mount)}")
    if position != view.served:
        _refuse_canary(model, "a pin to another snapshot")
    facts = model.facts.model_copy(update={"pinned": True})
    return Change(facts, {mount: view.at(position)})


def canary(model: LiveModel, *, fraction: float, to: str = "") -> Change:
    """Answers a fraction of the requests from a staged snapshot, from a held version, or from what arrives next."""
    if not (math.isfinite(fraction) and 0 < fraction <= 1):
        raise InvalidInput(f"fraction is {fraction}, expected more than 0 and at most 1", field="fraction")
    mount = _mount(model)
    if model.facts.shadow is not None:
        raise Conflict(f"model {model.name!r}: there is a shadow, {model.facts.shadow.to}; promote or stop it first")
    running = model.canary_entry()
    if running is not None:
        if to and to not in (running[1].id, running[1].name):
            raise Conflict(f"model {model.name!r}: the canary {running[1].name} runs; promote or stop it first")
        wanted = CanaryState(fraction=fraction, snapshot=running[1].id)
    else:
        position = _find(mount, to) if to else None
        if position is not None and position == mount.view.served:
            raise InvalidInput(f"model {model.name!r}: {to[:80]!r} is what is served", field="to")
        if position is not None and not mount.can_serve(position):
            position = None
        if to and position is None and not _names_published(model, mount, to):
            raise NotFound(f"model {model.name!r}: no snapshot or version {to[:80]!r}; {_there(mount)}")
        snapshot = None if position is None else mount.view.entries[position].id
        wanted = CanaryState(fraction=fraction, snapshot=snapshot, to=to if position is None else "")
    return Change(model.facts.model_copy(update={"canary": wanted}))


def promote(model: LiveModel) -> Change:
    """Serves the canary to everybody."""
    mount, entry = _running_canary(model, "promote")
    position = mount.view.find(entry.id)
    assert position is not None
    through = {each.id for each in mount.view.entries[: position + 1]}
    held = tuple(each for each in model.facts.held if each not in through)
    facts = model.facts.model_copy(update={"canary": None, "held": held})
    return Change(facts, {mount: mount.view.at(position)}, mount)


def stop_canary(model: LiveModel, why: str = "it was a canary and was stopped") -> Change:
    """Ends the canary, or the wait for one; its snapshot and those after it are held.

    why: the reason that requests which wait for it get.
    """
    _mount(model)
    if model.facts.canary is not None and model.canary_entry() is None:
        return Change(model.facts.model_copy(update={"canary": None}))
    mount, entry = _running_canary(model, "stop")
    position = mount.view.find(entry.id)
    assert position is not None
    gone = mount.view.entries[position:] if mount is not model.default or position > mount.view.served else ()
    held = tuple(dict.fromkeys((*model.facts.held, *(each.id for each in gone))))
    facts = model.facts.model_copy(update={"canary": None, "held": held})
    return Change(facts, why=why)


def end_trial(model: LiveModel, canary: str, *, promotes: bool, why: str) -> Change:
    """Promotes or stops a canary that was judged, unless another one runs by now. why: as for `stop_canary`."""
    _, entry = _running_canary(model, "judge")
    if entry.id != canary:
        raise Conflict(f"model {model.name!r}: the canary is {entry.name} by now")
    return promote(model) if promotes else stop_canary(model, why)


def allow(model: LiveModel, version: str, inputs: Sequence[str]) -> Change:
    """Allows a version to change these inputs or outputs."""
    if not (version.isdecimal() and version.isascii() and 0 < len(version) < 19):
        raise InvalidInput(f"version is {version[:40]!r}, expected a number such as 4", field="version")
    if not inputs:
        raise InvalidInput("inputs: name at least one input or output that may change", field="inputs")
    number = int(version)
    _mount(model)
    if number not in model.awaiting and not (model.folder / str(number)).is_dir():
        raise NotFound(f"model {model.name!r} has no version {number}")
    allowed = dict(model.facts.allowed)
    allowed[str(number)] = tuple(sorted({*allowed.get(str(number), ()), *inputs}))
    return Change(model.facts.model_copy(update={"allowed": allowed}))


def set_budget(model: LiveModel, dram_bytes: int | None) -> None:
    """Changes the DRAM budget; None restores that of config.pbtxt. Rows that do not fit are gone when it returns."""
    with model.lock:
        _mount(model)
        assert model.config is not None
        configured = model.config.options.dram_bytes
        before = model.facts.budget
        state = None if dram_bytes is None else BudgetState(dram_bytes=dram_bytes, instead_of=configured)
        model.commit(facts=model.facts.model_copy(update={"budget": state}))
    try:
        # Not under the lock: it may take as long as releasing millions of rows.
        model.budget.follow(lambda: model.facts.dram_bytes(configured))
    except BaseException:
        with model.lock:
            model.commit(facts=model.facts.model_copy(update={"budget": before}))
        raise


def set_sessions(model: LiveModel, count: int | None) -> None:
    """Changes how many sessions each loaded version has; None restores the number in config.pbtxt."""
    if count is not None and not 1 <= count <= MAX_SESSIONS:
        raise InvalidInput(f"count is {count}, expected 1 to {MAX_SESSIONS}", field="count")
    with model.lock:
        _mount(model)
        assert model.config is not None
        configured = model.config.sessions
        state = None if count is None else SessionsState(count=count, instead_of=configured)
        model.commit(facts=model.facts.model_copy(update={"sessions": state}))
        for loaded in model.routes.by_version.values():
            loaded.resize(count or configured)


def _mount(model: LiveModel) -> MountedStore:
    if model.default is None:
        reason = model.why_not()
        raise Unavailable(f"model {model.name!r} serves nothing{f': {reason}' if reason else ''}")
    return model.default


def _find(mount: MountedStore, to: str) -> int | None:
    position = mount.view.find(to)
    return mount.view.find(f"{to}.0") if position is None and to.isdecimal() else position


def _there(mount: MountedStore) -> str:
    names = [entry.name for index, entry in enumerate(mount.view.entries) if mount.can_serve(index)]
    return f"served is {mount.view.current.name}, there are {', '.join(names)}"


def _names_published(model: LiveModel, mount: MountedStore, to: str) -> bool:
    """Returns whether `to` is something newer than what is served that can be tried once it is loaded."""
    if to in model.facts.held or to in model.facts.abandoned:
        return True
    if _NAME.fullmatch(to) is None:
        return False
    version, sequence = (int(part) for part in f"{to}.0".split(".")[:2])
    served = mount.view.current.snapshot
    if sequence == 0:
        return version > served.version and (model.folder / str(version)).is_dir()
    is_newer = version == served.version and sequence > served.sequence
    return is_newer and (model.folder / str(version) / DELTAS / sequence_name(sequence)).is_dir()


def _refuse_canary(model: LiveModel, what: str) -> None:
    running = model.canary_entry()
    if running is not None:
        raise Conflict(
            f"model {model.name!r}: {what} is not possible while the canary {running[1].name} runs; promote "
            "or stop it first"
        )


def _running_canary(model: LiveModel, what: str) -> tuple[MountedStore, StagedSnapshot]:
    _mount(model)
    running = model.canary_entry()
    if running is None:
        raise Conflict(f"model {model.name!r}: there is no canary to {what}")
    return running[0], running[1]
