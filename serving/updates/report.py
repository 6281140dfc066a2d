"""Reports on the updates of a model: its snapshots as JSON values, its versions for the index, its counters."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from pydantic import JsonValue

from serving.engine.model import LoadedModel
from serving.engine.session_scaling import SessionScaling
from serving.gpu.device_model import DeviceModel
from serving.model_config.in_force import model_settings
from serving.updates.counters import UpdateCounters
from serving.updates.disk_waits import DiskWaits
from serving.updates.keep import kept_in
from serving.updates.live_model import LiveModel
from serving.updates.mount import MountedStore, StagedSnapshot
from serving.updates.shadowing import ShadowReport, shadow_json
from serving.updates.stale_stores import stores_in
from storage.checkpoint.graph_program import Candidate
from storage.errors import StoreError, Unavailable
from storage.tiers.budget_report import budget_report


@dataclass(slots=True)
class VersionEntry:
    """One version of a model in the index."""

    model: str
    #: Its number; "" when it could not be read so far.
    version: str
    #: State as in Triton's index.
    state: str = "LOADING"
    reason: str = ""
    loaded: LoadedModel | None = None


def snapshots(model: LiveModel) -> dict[str, JsonValue]:
    """Returns what is served, retained, held, quarantined and waited for."""
    # Figures of labels and a look at the disk take a while, and the lock is for short times only.
    observed, on_the_disk = model.feedback.report(), _on_the_disk(model)
    with model.lock:
        facts, default = model.facts, model.default
        canary = model.canary_entry()
        mounts = [] if default is None else [default]
        shadow = model.shadow_entry()
        mounts += [found[0] for found in (canary, shadow) if found is not None and found[0] not in mounts]
        shown: list[JsonValue] = []
        for mount in mounts:
            for position, entry in enumerate(mount.view.entries):
                is_shadow = shadow is not None and entry is shadow[1]
                shown.append(_shown(entry, "shadow" if is_shadow else _state(model, mount, position, canary)))
            shown += [_shown(entry, "shadow") for entry in mount.view.beside]
        return {
            "model": model.name,
            "mode": mode(model),
            "served": None if default is None else {**_named(default.view.current), "since_unix_ms": model.since[1]},
            "canary": None if canary is None else {**_named(canary[1]), "fraction": canary[2]},
            "shadow": _shadow(model),
            "feature_log": observed["log"],
            "live_auc": model.trial_report(),
            "feedback": observed["feedback"],
            "drift": observed["drift"],
            "snapshots": shown,
            "quarantined": [
                {"path": r.path, "snapshot": r.snapshot, "kind": r.kind, "reason": r.reason, "unix_ms": r.unix_ms}
                for r in facts.quarantine.values()
            ],
            "staging": model.staging or None,
            **hardware(default, mounts),
            "waiting": waiting(model),
            **on_the_disk,
        }


def hardware(default: MountedStore | None, mounts: Sequence[MountedStore]) -> dict[str, JsonValue]:
    """Returns which GPUs are given up, and how long lookups of what is served by default wait for the disk."""
    waits = DiskWaits() if default is None else default.disk_waits
    return {"gpus_given_up": [*_gpus_given_up(mounts)], **waits.to_json_value()}


def _gpus_given_up(mounts: Sequence[MountedStore]) -> Iterator[JsonValue]:
    """Yields the GPUs that the served versions use no more, or whose cache of rows they do not, and why."""
    for mount in mounts:
        loaded = mount.view.current.loaded.model
        for index, device in sorted(loaded.parts.devices.models.items()):
            reason = device.given_up or (device.gpu.tier.trouble if device.gpu is not None else "")
            if reason:
                what = "everything" if device.given_up else "rows"
                yield {"version": loaded.version, "gpu": index, "what": what, "reason": reason}


def note_disk_waits(model: LiveModel) -> None:
    """Looks at how long requests to what is served have waited for the disk so far. Called every few seconds."""
    with model.lock:
        mount = model.default
    if mount is not None:
        with suppress(StoreError):  # it is being closed just now
            stats = mount.view.current.loaded.model.store_stats()
            mount.disk_waits.note(time.monotonic(), stats.reads, stats.read_ns, 1000 * time.time())


def _on_the_disk(model: LiveModel) -> dict[str, JsonValue]:
    """Returns what the model's folder on the server's disk holds; nulls, and why, when it cannot be read."""
    try:
        return {"stores": [*stores_in(model.store_root)], "kept": [*kept_in(model.store_root)]}
    except OSError as error:
        return {"stores": None, "kept": None, "store_unreadable": str(error)}


def shadow(model: LiveModel) -> ShadowReport | None:
    """Returns how the shadow does; None without one."""
    with model.lock:
        state, running = model.facts.shadow, model.shadow_entry()
        if state is None or model.config is None:
            return None
        mount, entry = (None, None) if running is None else running
        return model.shadowing.report(state, entry, mount, model.config.options)


def _shadow(model: LiveModel) -> JsonValue:
    found = shadow(model)
    if found is not None:
        return shadow_json(found)
    return {"ended": model.shadowing.ended} if model.shadowing.ended else None


def budget(model: LiveModel) -> dict[str, JsonValue]:
    """Returns the DRAM budget and how it is used, the served store first.

    `storage.tiers.budget_report` describes each store.
    """
    with model.lock:
        mounts = sorted(model.mounts, key=lambda mount: mount is not model.default)
        configured = None if model.config is None else model.config.options.dram_bytes
    stores: list[JsonValue] = []
    for mount in mounts:
        with suppress(StoreError):  # it is being closed just now
            stores.append({"version": str(mount.view.current.snapshot.version), **budget_report(mount.store)})
    return {
        "model": model.name,
        "dram_bytes": model.budget.total,
        "configured_bytes": configured,
        "used_bytes": sum(store["used_bytes"] for store in stores),  # type: ignore[call-overload, index, misc]
        "fixed_bytes": sum(store["fixed_bytes"] for store in stores),  # type: ignore[call-overload, index, misc]
        "stores": stores,
    }


def _runner(name: str, candidates: Sequence[Candidate]) -> dict[str, JsonValue]:
    return {
        "name": name,
        "compared": [
            {"name": each.name, "us": {str(rows): us for rows, us in each.us.items()}, "why_not": each.why_not}
            for each in candidates
        ],
    }


def _processor_runner(loaded: LoadedModel) -> dict[str, JsonValue]:
    program = loaded.history.current.graph.program
    return _runner(program.runner, program.candidates)


def _gpu(device: DeviceModel) -> dict[str, JsonValue]:
    """Returns what the sessions of a version do on one GPU."""
    return {
        "name": device.driver.info.name,
        "runner": _runner(device.runner, device.candidates),
        "graphs": [bucket.size for bucket in device.buckets.all],
        "batches": dict(device.counters.batches),
        "padded_rows": device.counters.padded_rows,
        "on_processor": device.counters.on_processor,
        "weight_uploads": device.weight_slots.uploads,
        "hbm": _hbm(device),
        "given_up": device.given_up,
        "not_captured": device.not_captured,
    }


def _hbm(device: DeviceModel) -> dict[str, JsonValue] | None:
    """Returns the state of the cache of rows on a GPU; None where the host looks up all of them."""
    if device.gpu is None:
        return None
    tier = device.gpu.tier
    stats = tier.stats()
    lookups, misses = sum(table.lookups for table in stats.tables), sum(table.misses for table in stats.tables)
    return {
        "bytes": stats.device_bytes,
        "capacity_rows": stats.capacity_rows,
        "rows": stats.rows,
        "hits": lookups - misses,
        "misses": misses,
        "admitted": stats.admitted,
        "evicted": stats.evicted,
        "given_up": tier.trouble,
    }


def settings(model: LiveModel) -> dict[str, JsonValue]:
    """Returns the options of a model that are in force, and where each comes from. Raises Unavailable."""
    with model.lock:
        config, facts = model.config, model.facts
    if config is None:
        raise Unavailable(f"model {model.name!r} has no configuration that can be used: {model.why_not()}")
    count, dram_bytes = config.sessions, config.options.dram_bytes
    own_count, own_bytes = facts.session_count(count), facts.dram_bytes(dram_bytes)
    options = model_settings(
        config,
        sessions=None if own_count == count else own_count,
        dram_bytes=None if own_bytes == dram_bytes else own_bytes,
    )
    return {"of": "model", "name": model.name, "options": [*options]}


def _scaling(scaling: SessionScaling, is_fixed: bool) -> dict[str, JsonValue]:
    last = None if scaling.last is None else asdict(scaling.last)
    return {"least": scaling.least, "most": scaling.most, "fixed": is_fixed, "last": last}


def sessions(model: LiveModel) -> dict[str, JsonValue]:
    """Returns how many sessions there are, and what each session of every loaded version has done."""
    with model.lock:
        configured = None if model.config is None else model.config.sessions
        loaded = dict(model.routes.by_version)
    return {
        "model": model.name,
        "configured": configured,
        "versions": [
            {
                "version": version,
                "count": each.sessions,
                "scaling": None if each.scaling is None else _scaling(each.scaling, model.has_fixed_sessions),
                "pick": each.group.pick,
                "queued": each.queued,
                "runner": _processor_runner(each),
                "gpus": {str(index): _gpu(device) for index, device in sorted(each.parts.devices.models.items())},
                "sessions": [
                    {
                        "name": session.name,
                        "device": "cpu" if session.place is None else f"cuda:{session.place}",
                        "batches": session.statistics.batches,
                        "requests": session.statistics.requests,
                        "rows": session.statistics.rows,
                        "busy_s": session.statistics.busy_ns / 1e9,
                    }
                    for session in each.group.sessions
                ],
            }
            for version, each in sorted(loaded.items(), key=lambda item: int(item[0]))
        ],
    }


def mode(model: LiveModel) -> str:
    """Returns "following", "held", "paused" or "pinned"."""
    facts = model.facts
    return "pinned" if facts.pinned else "paused" if facts.paused else "held" if facts.held else "following"


def waiting(model: LiveModel) -> str | None:
    """Returns what is waited for, in words; None for nothing."""
    canary = model.facts.canary
    awaiting = [each.reason for each in model.awaiting.values()]
    parts = [
        model.remote(),
        *awaiting,
        model.waiting,
        model.trouble,
        model.damage,
        model.merge_trouble,
        *_damaged(model).values(),
    ]
    if canary is not None and model.canary_entry() is None:
        parts.append(f"{canary.to or 'what arrives next'} becomes the canary of {canary.fraction:.0%}")
    return "; ".join(dict.fromkeys(part for part in parts if part)) or None


def counters(model: LiveModel) -> UpdateCounters:
    """Returns the counters, with the current state."""
    with model.lock:
        stats = [stats for mount in model.mounts for stats in mount.store.overlay_stats().values()]
        return replace(
            model.counters,
            refused=dict(model.counters.refused),
            overlays=len(stats),
            overlay_bytes=sum(each.bytes for each in stats),
            overlay_rows=sum(each.rows for each in stats),
            step_seconds=dict(model.counters.step_seconds),
            served_since_unix_ms=0 if model.default is None else model.since[1],
            held=len(model.facts.held),
            staging=bool(model.staging),
            waiting=waiting(model),
            merge_failing=bool(model.merge_trouble),
            store_rebuilding=bool(model.damage),
            dram_bytes=model.budget.total,
        )


def versions(model: LiveModel) -> list[VersionEntry]:
    """Returns every version that is served, and those that are not with the reason; never an empty list."""
    with model.lock:
        routes, facts = model.routes, model.facts
        ready = routes.by_version.items()
        entries = {int(number): VersionEntry(model.name, number, "READY", "", loaded) for number, loaded in ready}
        refused: dict[int, list[str]] = {}
        for refusal in facts.quarantine.values():
            parts = refusal.path.removeprefix(str(model.folder)).strip("/").split("/")
            if not all(part.isdecimal() for part in (parts[0], parts[-1])):
                continue  # of another place, before the folder was moved
            number = int(parts[0])
            if len(parts) == 1:
                entry = entries.setdefault(number, VersionEntry(model.name, parts[0], "UNAVAILABLE", refusal.reason))
                if entry.loaded is not None:
                    entry.reason = f"the version {number} that lies in the folder now is refused: {refusal.reason}"
            else:
                refused.setdefault(number, []).append(f"{number}.{int(parts[-1])}: {refusal.reason}")
        for entry in entries.values():
            if entry.loaded is not None and entry.loaded.unready:
                entry.state = "UNAVAILABLE"
                entry.reason = entry.loaded.trouble or model.damage or entry.loaded.unready
        for number, awaiting in model.awaiting.items():
            entries.setdefault(number, VersionEntry(model.name, str(number), "UNAVAILABLE", awaiting.reason))
        damaged = _damaged(model)
        for number, entry in entries.items():
            if entry.state == "READY":
                deltas = f"refused deltas: {'; '.join(refused[number][-8:])}" if number in refused else ""
                texts = (entry.reason, damaged.get(number, ""), deltas, model.merge_trouble)
                entry.reason = "; ".join(text for text in texts if text)
        if entries and model.default is None and model.trouble:
            entries[0] = VersionEntry(model.name, "", "UNAVAILABLE", model.trouble)
        if entries:
            return [entries[number] for number in sorted(entries)]
        if model.stopping.is_set():
            return [VersionEntry(model.name, "", "UNAVAILABLE", "unloaded")]
        reason = model.trouble or model.damage
        return [VersionEntry(model.name, "", "UNAVAILABLE" if model.trouble else "LOADING", reason)]


def _damaged(model: LiveModel) -> dict[int, str]:
    """Returns what is wrong with the published files of served versions, by number."""
    loaded_versions = [loaded for mount in model.mounts for loaded in mount.loaded_versions.values()]
    texts = {loaded.version: model.damaged.get(loaded.published.snapshot, "") for loaded in loaded_versions}
    return {number: text for number, text in texts.items() if text}


def _state(
    model: LiveModel, mount: MountedStore, position: int, canary: tuple[MountedStore, StagedSnapshot, float] | None
) -> str:
    entry = mount.view.entries[position]
    if canary is not None and canary[1] is entry:
        return "canary"
    if mount is model.default and position == mount.view.served:
        return "served"
    if position > mount.view.served:
        return "held" if entry.id in model.facts.held else "retained"
    return "base" if position == 0 else "retained"


def _named(entry: StagedSnapshot) -> dict[str, JsonValue]:
    snapshot = entry.snapshot
    return {"id": entry.id, "version": snapshot.version, "sequence": snapshot.sequence, "name": entry.name}


def _shown(entry: StagedSnapshot, state: str) -> dict[str, JsonValue]:
    return {
        "id": entry.id,
        "name": entry.name,
        "state": state,
        "rows": entry.rows,
        "removed": entry.removed,
        "bytes": entry.bytes,
        "published_unix_ms": entry.snapshot.published_unix_ms,
        "visible_ms": entry.visible_ms,
    }
