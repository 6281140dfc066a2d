"""Decides what is taken next, from what is in the folder and what is served. It has no I/O, clock or locks.

A delta is taken when the served snapshot is one of those that it applies to; among several, the one that reaches
furthest is taken. What was rolled back, and all that was made from it, is held; what the trainer has gone past is
abandoned. A delta or version that continues from the served snapshot without a held one ends the hold, unless it is
older than what is held: then it was there before, and nobody went back.

A version is known by its snapshot id, not by its number: a publisher that begins anew uses the numbers again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from serving.updates.catalog import Catalog, Found
from serving.updates.state import SavedSnapshot
from storage.errors import ConfigError, LineageError

_GIVEN_UP = "was made from what was set aside when the trainer went back"


@dataclass(frozen=True)
class Situation:
    """The state that `decide` depends on: what is served, held and refused."""

    #: The snapshot that the mount in question serves; None before anything is served.
    served: SavedSnapshot | None
    #: Ids of the held snapshots.
    held: frozenset[str] = frozenset()
    #: Ids of the abandoned snapshots.
    abandoned: frozenset[str] = frozenset()
    #: Newest delta of the served version that was rolled back.
    held_sequence: int = 0
    #: The version policy: takes numbers, returns the numbers to serve, ascending.
    choose: Callable[[list[int]], list[int]] = lambda found: sorted(found)[-1:]
    #: Returns whether something is quarantined.
    refused: Callable[[Found], bool] = lambda found: False
    #: Versions that wait for an operator's word, with the reason.
    awaiting: Mapping[int, str] = field(default_factory=dict)
    #: Why nothing new is taken; "" when it is taken.
    stopped: str = ""
    #: A snapshot or version that an operator asked to try, held or abandoned.
    canary_to: str = ""
    #: Snapshots that the held ones were made from.
    older: frozenset[str] = frozenset()
    #: Id of the version that the served snapshot belongs to; "" when unknown.
    version_snapshot: str = ""
    #: Time when the served snapshot was published.
    published_unix_ms: int = 0
    #: True if the served snapshot was taken from another repository.
    other_folder: bool = False
    #: Snapshots that led to what was served when its store was lost; a hold does not exclude them, and they end none.
    again: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Take:
    """The action to take a version or delta."""

    found: Found
    #: True if it continues from the served snapshot, past what is held.
    clears_holds: bool = False


@dataclass(frozen=True)
class Refuse:
    """The action to refuse a version or delta that can never be taken."""

    found: Found
    error: Exception


@dataclass(frozen=True)
class Wait:
    """The result when there is nothing to do."""

    #: What is waited for; "" when everything that is there is served.
    reason: str = ""


@dataclass(frozen=True)
class Decision:
    """The next action, and the snapshots that are held or abandoned now."""

    action: Take | Refuse | Wait
    held: frozenset[str]
    abandoned: frozenset[str]
    #: Other versions to serve by the policy.
    side: tuple[int, ...] = ()


def decide(catalog: Catalog, now: Situation) -> Decision:
    """Returns the next action of the mount that answers requests without a version."""
    held, abandoned = spread(catalog, now.held), spread(catalog, now.abandoned)
    now = Situation(**{**now.__dict__, "held": held, "abandoned": abandoned, "older": _made_into(catalog, held)})
    if now.served is not None:
        # A served snapshot is no news, whatever its manifest says about its origin.
        held, abandoned = held - {now.served.id}, abandoned - {now.served.id}
    broken = _broken(catalog, now)
    if broken is not None:
        return Decision(broken, held, abandoned)
    try:
        target, side, waiting = _choose_version(catalog, now)
    except ConfigError as error:
        return Decision(Wait(str(error)), held, abandoned)
    action: Take | Refuse | Wait = Wait(waiting)
    delta = Wait() if now.served is None else next_delta(catalog, now, _limit(catalog, now, target))
    if target is not None and not (isinstance(delta, Take) and _leads_to(catalog, now, target)):
        action = Take(target, _clears(target, now))
    elif not isinstance(delta, Wait) or not waiting:
        action = delta
    if now.stopped and isinstance(action, Take):
        action = Wait(f"{action.found.name} waits: {now.stopped}")
    return Decision(action, held, abandoned, side)


def next_delta(catalog: Catalog, now: Situation, limit: int | None = None) -> Take | Refuse | Wait:
    """Returns the delta that the served snapshot continues with. limit: the largest sequence that may be taken."""
    served = now.served
    if served is None:
        return Wait()
    newer = [d for d in catalog.deltas(served.version) if d.sequence > served.sequence and not now.refused(d)]
    best: Found | None = None
    reason = ""
    for delta in newer:
        if delta.error is not None:
            return Refuse(delta, delta.error)
        version = catalog.versions[served.version]
        if version.error is None and delta.base != version.snapshot:
            return Refuse(
                delta,
                LineageError(
                    f"delta {delta.name} belongs to a version {served.version} with the snapshot {delta.base}, but "
                    f"this one is {version.snapshot}"
                ),
            )
        if is_abandoned(delta, now):
            reason = reason or f"{delta.name} {_GIVEN_UP}; try it with a canary, --to {delta.name}"
        elif is_held(delta, now):
            reason = reason or f"{delta.name} is held: {_why_held(delta, now)}"
        elif served.id not in delta.ancestors:
            reason = f"{delta.name} continues {delta.parent}, which is not what is served ({served.name}, {served.id})"
        elif limit is None or delta.sequence <= limit:
            best = delta
    if best is not None:
        return Take(best, _clears(best, now))
    return Wait(reason)


def is_replaced(catalog: Catalog, now: Situation) -> bool:
    """Returns whether the folder holds another version in the place of the served one.

    It does when the number of the served version is that of another snapshot now, or when that number is gone and a
    version with a smaller number was published after what is served: then the repository was begun anew. A smaller
    number that was published before is what an operator or a publisher left, and the served version stays.
    """
    if now.served is None or not now.version_snapshot:
        return False
    there = catalog.versions.get(now.served.version)
    if there is not None:
        return there.error is None and there.snapshot != now.version_snapshot
    return any(
        version.error is None
        and (now.other_folder or (number < now.served.version and version.published_unix_ms > now.published_unix_ms))
        for number, version in catalog.versions.items()
    )


def is_held(found: Found, now: Situation) -> bool:
    """Returns whether it was rolled back, made from such a snapshot, or is older than one.

    False for what is wanted as the canary.
    """
    if _is_wanted(found, now):
        return False
    if found.snapshot in now.held or found.ancestors & now.held:
        return True
    if found.snapshot in now.again:
        return False
    if found.snapshot in now.older:
        return True
    of_served = now.served is not None and found.version == now.served.version and bool(now.held)
    return of_served and 0 < found.sequence < now.held_sequence


def _why_held(found: Found, now: Situation) -> str:
    if found.ancestors & now.held:
        return "it was made from a snapshot that was rolled back, or was a canary and was stopped"
    if found.snapshot in now.held:
        return "it was rolled back, or was a canary and was stopped"
    return "it is older than a snapshot that was rolled back"


def is_abandoned(found: Found, now: Situation) -> bool:
    """Returns whether the trainer went past it, or past what it was made from; False for the wanted canary."""
    if _is_wanted(found, now):
        return False
    return found.snapshot in now.abandoned or bool(found.ancestors & now.abandoned)


def names(found: Found) -> tuple[str, ...]:
    """Returns the names that an operator may use for it."""
    return (found.snapshot, found.name, *([] if found.is_delta else [str(found.version)]))


def spread(catalog: Catalog, snapshots: Iterable[str]) -> frozenset[str]:
    """Returns these snapshots and all that was made from them, as far as the folder shows."""
    reached = set(snapshots)
    if not reached:
        return frozenset()
    found: list[Found] = []
    for version in catalog.versions.values():
        found += [version, *version.deltas]
    while True:
        more = {f.snapshot for f in found if not reached.isdisjoint(f.ancestors)} - reached
        if not more:
            return frozenset(reached)
        reached |= more


def _broken(catalog: Catalog, now: Situation) -> Refuse | None:
    served = 0 if now.served is None else now.served.version
    for number, version in catalog.versions.items():
        if version.error is not None and number >= served and not now.refused(version):
            return Refuse(version, version.error)
    return None


def _choose_version(catalog: Catalog, now: Situation) -> tuple[Found | None, tuple[int, ...], str]:
    """Returns the version to move to, if any; the others that the policy wants; and what is waited for."""
    replaced = is_replaced(catalog, now)
    served = None if now.served is None or replaced else now.served.version
    good = {
        number
        for number, version in catalog.versions.items()
        if version.error is None
        and not now.refused(version)
        and not is_held(version, now)
        and not is_abandoned(version, now)
    }
    if served is not None:
        good.add(served)
    waiting = ""
    for number in sorted(good, reverse=True):
        if number in now.awaiting and number != served:
            waiting = waiting or now.awaiting[number]
            good.discard(number)
    if not good:
        if replaced and now.served is not None and not waiting:
            waiting = (
                f"what is served ({now.served.name}, {now.served.id}) is not in the folder any more, and what lies "
                "there is refused, held or given up"
            )
        return None, (), waiting
    wanted = now.choose(sorted(good))
    if not wanted:
        return None, (), waiting
    newest = wanted[-1]
    if newest == served:
        newer = [v for n, v in sorted(catalog.versions.items()) if n > newest and v.error is None]
        last = next((v for v in reversed(newer) if is_held(v, now) or is_abandoned(v, now)), None)
        if last is not None and not waiting and not now.refused(last):
            waiting = f"version {last.version} is held: {_why_held(last, now)}"
            if is_abandoned(last, now):
                waiting = f"version {last.version} {_GIVEN_UP}; try it with a canary, --to {last.version}"
        return None, tuple(wanted[:-1]), waiting
    return catalog.versions[newest], tuple(wanted[:-1]), waiting


def _leads_to(catalog: Catalog, now: Situation, version: Found) -> bool:
    """Returns whether deltas in the folder lead to exactly the rows of a version.

    Then taking them first costs next to nothing.
    """
    if now.served is None or version.equals is None or version.equals == now.served.id:
        return False
    return any(d.snapshot == version.equals and not now.refused(d) for d in catalog.deltas(now.served.version))


def _limit(catalog: Catalog, now: Situation, version: Found | None) -> int | None:
    if now.served is None or version is None or version.equals is None:
        return None
    for delta in catalog.deltas(now.served.version):
        if delta.snapshot == version.equals:
            return delta.sequence
    return None


def _made_into(catalog: Catalog, held: frozenset[str]) -> frozenset[str]:
    """Returns the snapshots that the held ones were made from."""
    if not held:
        return frozenset()
    each: list[Found] = []
    for version in catalog.versions.values():
        each += [version, *version.deltas]
    return frozenset(name for found in each if found.snapshot in held for name in found.ancestors)


def _is_wanted(found: Found, now: Situation) -> bool:
    return now.canary_to != "" and now.canary_to in names(found)


def _clears(found: Found, now: Situation) -> bool:
    if not now.held or now.served is None or found.snapshot in now.again:
        return False
    return now.served.id in found.ancestors and not found.ancestors & now.held
