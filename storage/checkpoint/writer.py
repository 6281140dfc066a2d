"""Publishes a version: writes everything into a folder beside the target, forces it to disk, and renames it once."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.checkpoint import manifest as layout
from storage.checkpoint.archive import pack_graph
from storage.checkpoint.event_times import EventTimes
from storage.checkpoint.fingerprint import agreed_fingerprint, rows_fingerprint, weights_fingerprint
from storage.checkpoint.folder import check_size
from storage.checkpoint.golden import Golden, write_golden
from storage.checkpoint.install import make_place, move_into_place, publishing, sync_directory
from storage.checkpoint.manifest import (
    AbsentEntry,
    FileEntry,
    GraphEntry,
    GraphInput,
    GraphOutput,
    Manifest,
    TableEntry,
)
from storage.checkpoint.model_config import config_text, write_config_if_absent
from storage.checkpoint.reader import PublishedVersion
from storage.checkpoint.streams import StreamedTable, TableStream, WrittenRows, write_stream
from storage.checkpoint.tables import SHARD_BYTES, TableData, write_table
from storage.checkpoint.tensors import WrittenFile, write_bytes, write_tensors
from storage.checkpoint.versions import is_version
from storage.errors import CheckpointError, ConfigError
from storage.paths import local_path
from storage.specs import check_absent, check_model_name, check_row_type

if TYPE_CHECKING:
    import torch

    from storage.checkpoint.program import PackedProgram
    from storage.features import FeatureSpec

_ATTEMPTS = 100


def write_version(
    model_dir: Path | str,
    *,
    version: int | None,
    spec: FeatureSpec,
    tables: Sequence[TableData | TableStream],
    graph: torch.export.ExportedProgram | PackedProgram,
    graph_inputs: Sequence[GraphInput],
    graph_outputs: Sequence[GraphOutput],
    golden: Golden | Callable[[WrittenRows], Golden],
    fingerprints: Mapping[str, int] | None = None,
    dense_fingerprint: int | None = None,
    max_batch_size: int = 1024,
    metadata: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
    events: EventTimes | None = None,
    parent: str | None = None,
    equals: str | None = None,
    descends_from: Sequence[str] = (),
    snapshot: str | None = None,
    created_unix_ms: int | None = None,
    erased_unix_ms: int = 0,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Publishes a version of the model `model_dir.name` and returns its folder.

    version: its number; None takes the next free one, also while others publish. graph: a program, or what
    pack_program made of it and of the inputs and outputs. graph_inputs and graph_outputs: in the order of the program's
    own inputs and outputs. fingerprints, dense_fingerprint: as for `write_delta`. metadata:
    JSON values, shown by inspection. events: the times of the rows that it was trained on. erased_unix_ms:
    when ids were last forgotten in the trainer's line; 0 if none were.
    Raises CheckpointError when the number is taken, ConfigError when the parts do not fit together, UnsafeArtifact
    when the graph uses what the loader would refuse, ParityError for another fingerprint than the trainer's. Nothing
    is left behind then.
    """
    from storage.checkpoint.program import PackedProgram, pack_program

    model_dir = local_path(model_dir, "model_dir")
    check_model_name(model_dir.name)
    if version is not None and version < 1:
        raise ConfigError(f"version is {version}, expected 1 or more", field="version")
    _check_parts(spec, tables, graph_inputs)
    packed = graph if isinstance(graph, PackedProgram) else pack_program(graph, graph_inputs, graph_outputs)

    make_place(model_dir)
    if version is not None:
        _refuse_taken(model_dir / str(version))
    now_ms = time.time_ns() // 1_000_000 if created_unix_ms is None else created_unix_ms
    with publishing(model_dir) as folder:
        (folder / "tables").mkdir()
        files: list[FileEntry] = []

        def record(path: str, written: WrittenFile) -> None:
            check_size(path, written.size)
            files.append(FileEntry(path=path, size=written.size, sha256=written.sha256))

        record(layout.GRAPH, write_bytes(folder / layout.GRAPH, pack_graph(packed.document)))
        record(layout.WEIGHTS, write_tensors(folder / layout.WEIGHTS, packed.weights, packed.weight_dtypes))
        record(layout.FEATURES, write_bytes(folder / layout.FEATURES, spec.model_dump_json(indent=1).encode() + b"\n"))
        written = {table.name: _written(folder, table, shard_bytes) for table in tables}
        scored = golden if isinstance(golden, Golden) else golden(WrittenRows(folder, tables, written))
        record(layout.GOLDEN, write_golden(folder / layout.GOLDEN, scored, packed.outputs))
        entries = []
        trained = fingerprints or {}
        for table in tables:
            found = written[table.name]
            files.extend(found.files)
            entries.append(
                TableEntry(
                    name=table.name,
                    dim=table.dim,
                    row_type=check_row_type(table.row_type),
                    rows=found.rows,
                    kind=table.kind,
                    shards=tuple(shard.path for shard in found.files),
                    fingerprint=agreed_fingerprint(f"table {table.name!r}", found.fingerprint, trained.get(table.name)),
                    absent=AbsentEntry.of(table.absent),
                )
            )
        manifest = Manifest(
            snapshot=snapshot or secrets.token_hex(16),
            parent=parent,
            equals=equals,
            descends_from=tuple(descends_from)[: layout.MAX_DESCENT],
            version=version or 1,
            created_unix=now_ms // 1000,
            created_unix_ms=now_ms,
            max_batch_size=max_batch_size,
            files=tuple(files),
            tables=tuple(entries),
            graph=GraphEntry(inputs=packed.inputs, outputs=packed.outputs, torch_version=packed.torch_version),
            dense_fingerprint=agreed_fingerprint(
                "dense weights", weights_fingerprint(packed.weights), dense_fingerprint
            ),
            golden=scored.entry(),
            events=events,
            erased_unix_ms=erased_unix_ms,
            metadata=dict((metadata() if callable(metadata) else metadata) or {}),
        )
        _load_once(folder, manifest)
        text = config_text(model_dir.name, spec, packed.outputs, max_batch_size)
        return _install(folder, model_dir, manifest, version, text)


def next_version(model_dir: Path) -> int:
    """Returns one more than the largest version number in use."""
    taken = [int(entry.name) for entry in model_dir.iterdir() if is_version(entry.name)]
    return max(taken, default=0) + 1


def _written(folder: Path, table: TableData | TableStream, shard_bytes: int) -> StreamedTable:
    if isinstance(table, TableStream):
        return write_stream(folder, table)
    fingerprint = rows_fingerprint(table.ids, table.encoded)
    return StreamedTable(write_table(folder, table, shard_bytes=shard_bytes), len(table.ids), fingerprint)


def _check_parts(spec: FeatureSpec, tables: Sequence[TableData | TableStream], inputs: Sequence[GraphInput]) -> None:
    names = [table.name for table in tables]
    if len(set(names)) != len(names):
        raise ConfigError(f"tables: a name stands twice in {names}", field="tables")
    dims = {table.name: table.dim for table in tables}
    row_types = {table.name: table.row_type for table in tables}
    shapes: dict[tuple[str, str], tuple[int, ...]] = {}
    for feature in spec.ids_features:
        if feature.table not in dims:
            raise ConfigError(
                f"feature {feature.name!r} looks up the table {feature.table!r}, published are {names}",
                field=f"features.{feature.name}.table",
            )
        if feature.absent is not None:
            check_absent(
                feature.absent.rows,
                row_types[feature.table],
                what=f"feature {feature.name!r}",
                field=f"features.{feature.name}.absent",
            )
        for level in spec.lookup(feature.name).fallback:
            if dims.get(level.table) != dims[feature.table]:
                has = f"has rows of {dims[level.table]} values" if level.table in dims else f"is not among {names}"
                raise ConfigError(
                    f"feature {feature.name!r}: falls back to {level.name!r}, whose table {level.table!r} {has}; "
                    f"expected rows of {dims[feature.table]} values, as in {feature.table!r}",
                    field=f"features.{feature.name}.fallback",
                )
        if feature.pooling == "none":
            shapes["rows", feature.name] = (-1, feature.length, dims[feature.table])
            shapes["lengths", feature.name] = (-1,)
            shapes["mask", feature.name] = (-1, feature.length)
        else:
            shapes["pooled", feature.name] = (-1, dims[feature.table])
    shapes.update({("ids", name): (-1, width) for name, width in spec.integers.items()})
    shapes.update({("dense", group): (-1, width) for group, width in spec.dense_groups.items()})
    for entry in inputs:
        shape = shapes.get((entry.kind, entry.source))
        if shape is None:
            known = sorted(source for kind, source in shapes if kind == entry.kind)
            raise ConfigError(
                f"graph input {entry.name!r}: no {entry.kind} source {entry.source!r} in the spec, only {known}",
                field="graph_inputs",
            )
        if entry.shape != shape:
            raise ConfigError(
                f"graph input {entry.name!r}: declared {list(entry.shape)}, the feature spec gives {list(shape)}",
                field="graph_inputs",
            )


def _load_once(folder: Path, manifest: Manifest) -> None:
    # A graph that the loader would refuse must fail here, at the publisher, and not in a server.
    PublishedVersion(folder, manifest).graph()


def _install(folder: Path, model_dir: Path, manifest: Manifest, version: int | None, config: str) -> Path:
    for _ in range(_ATTEMPTS):
        number = next_version(model_dir) if version is None else version
        target = model_dir / str(number)
        (folder / layout.MANIFEST).unlink(missing_ok=True)
        write_bytes(folder / layout.MANIFEST, manifest.model_copy(update={"version": number}).to_bytes())
        sync_directory(folder / "tables")
        sync_directory(folder)
        write_config_if_absent(model_dir, config)
        if move_into_place(folder, target):
            return target
        if version is not None:
            _refuse_taken(target)
    raise CheckpointError(f"{model_dir}: no free version number in {_ATTEMPTS} attempts; other publishers keep winning")


def _refuse_taken(target: Path) -> None:
    if os.path.lexists(target):
        raise CheckpointError(f"{target} exists; published versions never change, so choose another number or none")
