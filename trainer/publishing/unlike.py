"""Says why a delta cannot turn a published version into a module: what a delta does not change is not as it was."""

from __future__ import annotations

from storage.checkpoint import PublishedVersion
from storage.errors import CheckpointError
from storage.features import FeatureSpec
from trainer.publishing.cut_plan import CutPlan
from trainer.publishing.delta_content import live_weights
from trainer.publishing.delta_writer import DeltaWriter
from trainer.publishing.row_types import RowTypes


def reason_for_version(writer: DeltaWriter, row_types: RowTypes, tolerance: float) -> str | None:
    """Returns what of the prepared module is not as in the writer's version; None when a delta will do."""
    prepared, version = writer.prepared, writer.version
    reason = (
        _other_tables(prepared.plan, version)
        or _other_spec(version.spec, prepared.plan.spec)
        or _other_storage(row_types, version)
    )
    if reason is not None:
        return reason
    was, now = version.manifest.graph.outputs, prepared.outputs
    if was != now:
        return f"the outputs were {_named(was)} and are {_named(now)}"
    try:
        live_weights(prepared.half, writer.graph)
    except CheckpointError as error:
        return str(error).removesuffix("; publish a version")
    if not writer.is_current(tolerance):
        return "the module computes something else with the same weights than the version's graph"
    return None


def _other_tables(plan: CutPlan, version: PublishedVersion) -> str | None:
    was = {spec.name: spec for spec in version.tables}
    now = {source.name: source for source in plan.tables}
    if was.keys() != now.keys():
        return f"the tables were {', '.join(sorted(was)) or 'none'} and are {', '.join(sorted(now)) or 'none'}"
    for name, source in now.items():
        if source.dim != was[name].dim:
            return f"rows of the table {name!r} had {was[name].dim} values and have {source.dim}"
        if source.absent != was[name].absent:
            return f"ids without a row read as {was[name].absent} in the table {name!r}, and as {source.absent} now"
    return None


def _other_spec(was: FeatureSpec, now: FeatureSpec) -> str | None:
    if was == now:
        return None
    for what, before, after in (("input", was.inputs, now.inputs), ("feature", was.features, now.features)):
        known = {entry.name: entry for entry in before}
        names = {entry.name for entry in after}
        for entry in after:
            if entry.name not in known:
                return f"the {what} {entry.name!r} is new"
            if entry != known[entry.name]:
                before_it, now_it = known[entry.name].model_dump(), entry.model_dump()
                key = next((key for key in now_it if now_it[key] != before_it.get(key)), "type")
                return f"{key} of the {what} {entry.name!r} was {before_it.get(key)!r} and is {now_it.get(key)!r}"
        if gone := sorted(known.keys() - names):
            return f"the {what} {gone[0]!r} is gone"
    return "its features come in another order"


def _other_storage(row_types: RowTypes, version: PublishedVersion) -> str | None:
    if (other := row_types.first_other(version)) is None:
        return None
    table, asked, has = other
    return f"rows of the table {table!r} are {has} and are to be {asked}"


def _named(outputs: tuple[object, ...]) -> str:
    return ", ".join(f"{getattr(each, 'name', each)} {list(getattr(each, 'shape', ()))}" for each in outputs)
