"""Forgets ids in a repository alone: writes its newest snapshot as a version without them, and removes all others.

For models that no run of this package publishes: modules of one's own, and imported tables. Nothing is scored again:
golden requests without the ids keep their scores, and those with them go.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from storage.checkpoint import Golden, write_version
from storage.checkpoint.archive import unpack_graph
from storage.checkpoint.as_of import AsOf, find_as_of
from storage.checkpoint.manifest import GRAPH, TableEntry
from storage.checkpoint.program import PackedProgram
from storage.checkpoint.row_streams import RowPatch, RowStream, patched_rows
from storage.checkpoint.streams import TableStream
from storage.errors import ConfigError
from storage.features import FeatureEngine, FeatureSpec, column_from_rows
from storage.features.python_rows import column_rows
from storage.features.strict_model import did_you_mean
from storage.forgetting import Needles, Wanted, find_places
from trainer.forgetting import Forgotten
from trainer.publishing.delta_content import weight_arrays
from trainer.publishing.lineage import Lineage, Published
from trainer.publishing.repository import read_deltas, read_version, version_numbers
from trainer.publishing.target import Target, shown


def check_published(model: Path, wanted: Wanted) -> None:
    """Raises ConfigError for a table that the newest version lacks, or whose rows are not those of one id each.

    model: the model's folder. Raises NotFound when nothing is published there.
    """
    version = find_as_of(model, verify=False).version
    known = {entry.name: entry for entry in version.manifest.tables}
    for name in wanted.tables:
        if (of := version.spec.mean_tables.get(name)) is not None:
            raise ConfigError(
                f"table {name!r}: its one row is the mean of the table {of!r} and no id's; name that one", field="table"
            )
        if name not in known:
            raise ConfigError(
                f"table {name!r}: the model has none of that name{did_you_mean(name, known)}", field="table"
            )
        kind = known[name].kind
        if kind.type != "dynamic" and not (kind.type == "classes" and kind.part == "hot"):
            raise ConfigError(
                f"table {name!r}: its kind is {kind.type}, whose rows are not those of one id each, so forgetting one "
                "id would forget others",
                field="table",
            )


def forget_published(
    repository: Path | str, name: str, source: Path, wanted: Wanted, *, say: Callable[[str], None] = lambda _: None
) -> Forgotten:
    """Forgets ids in a model of a repository, which nobody publishes into meanwhile.

    source: a folder with all that is published of the model: its own, or a copy where the repository is a URL. Raises
    ConfigError for tables of other kinds and when every golden request leads to one of the ids.
    """
    check_published(source, wanted)
    say("checking what is published")
    newest = find_as_of(source)
    version = newest.version
    target = Target.of(repository, name)
    done, snapshot = Forgotten(), secrets.token_hex(16)
    golden, gone = _golden(newest, version.spec, wanted)
    done.sample_rows = gone
    say("writing the version")
    now_ms = max(time.time_ns() // 1_000_000, newest.published_unix_ms + 1)
    counts: dict[str, int] = {}
    folder = write_version(
        target.model_dir,
        version=target.claim_version(snapshot, None),
        spec=version.spec,
        tables=[_without(newest, entry, wanted, counts) for entry in version.manifest.tables],
        graph=_program(newest),
        graph_inputs=version.manifest.graph.inputs,
        graph_outputs=version.manifest.graph.outputs,
        golden=golden,
        max_batch_size=version.manifest.max_batch_size,
        metadata=version.manifest.metadata,
        parent=newest.id,
        descends_from=_line(newest),
        snapshot=snapshot,
        created_unix_ms=now_ms,
        erased_unix_ms=now_ms,
    )
    target.publish(folder)
    done.rows, done.version = counts, folder
    done.snapshot, done.published = snapshot, shown(repository, folder)
    say("removing older snapshots")
    lineage = Lineage(
        version=int(folder.name),
        base=snapshot,
        published=(Published(snapshot, int(folder.name), 0, {}),),
        ancestors=_versions(source),
    )
    done.stays = target.erase(lineage, lambda path: bool(find_places([path], wanted, version.spec, Needles())))
    return done


def _without(newest: AsOf, entry: TableEntry, wanted: Wanted, counts: dict[str, int]) -> TableStream:
    stream = newest.rows(entry.name)
    ids = wanted.tables.get(entry.name)
    if ids is None or not len(ids):
        return TableStream(stream, entry.kind)
    counts[entry.name] = sum(len(wanted.among(entry.name, block.ids)) for block in stream)
    nothing = RowStream(stream.spec, lambda: ())
    rows = patched_rows(stream, [RowPatch(nothing, ids)])
    return TableStream(replace(rows, spec=stream.spec), entry.kind)


def _program(newest: AsOf) -> PackedProgram:
    """Returns the graph of the version with the weights of the newest snapshot, all of them checked before."""
    version = newest.version
    graph, (weights, dtypes) = version.manifest.graph, weight_arrays(newest.weights())
    return PackedProgram(
        unpack_graph(GRAPH, (version.path / GRAPH).read_bytes()),
        weights,
        dtypes,
        graph.inputs,
        graph.outputs,
        graph.torch_version,
    )


def _golden(newest: AsOf, spec: FeatureSpec, wanted: Wanted) -> tuple[Golden, int]:
    """Returns the golden requests of a snapshot that lead to none of the ids, and how many others there were."""
    version = newest.version
    golden = newest.deltas[-1].golden(spec, version.manifest.graph) if newest.deltas else version.golden()
    holding = wanted.rows_holding(FeatureEngine(spec), golden.columns, golden.batch)
    if holding.all():
        raise ConfigError(
            f"{version.path}: every golden request leads to one of the ids, and none would be left to check servers "
            "with; publish a version from where the model was trained",
            field="ids",
        )
    kept = np.flatnonzero(~holding)
    columns = {}
    for entry in spec.inputs:
        column = golden.columns.get(entry.name)
        if column is not None:
            rows = column_rows(column)
            of_all = column.rows != golden.batch
            sent = entry.model_copy(update={"dtype": column.dtype})
            columns[entry.name] = column if of_all else column_from_rows(sent, [rows[at] for at in kept.tolist()])
    outputs = {name: values[kept] for name, values in golden.outputs.items()}
    return replace(golden, columns=columns, batch=len(kept), outputs=outputs), int(holding.sum())


def _line(newest: AsOf) -> tuple[str, ...]:
    """Returns the snapshots that the new version descends from, newest first."""
    manifest = newest.version.manifest
    names = [delta.snapshot for delta in reversed(newest.deltas)]
    return tuple(dict.fromkeys([*names, newest.version.snapshot, *manifest.descends_from]))


def _versions(source: Path) -> tuple[str, ...]:
    """Returns the snapshots of all versions and deltas that are published."""
    found: list[str] = []
    for number in version_numbers(source):
        version = read_version(source, number)
        if version is not None:
            found += [version.snapshot, *(delta.snapshot for delta in read_deltas(version.path))]
    return tuple(found)
