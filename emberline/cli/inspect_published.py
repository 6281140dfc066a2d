"""Describes published versions, deltas and repositories for `emberline inspect`."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberline.cli.row_types import rounding_lines
from emberline.cli.view import View
from emberline.fitted_table import FittedTable, elided, whole, wrapping
from storage.errors import CheckpointError, NotFound, ReadError

if TYPE_CHECKING:
    from storage import PublishedDelta, PublishedVersion, TableSpec
    from storage.checkpoint import Shard

MANIFEST = "manifest.json"
_HOTTEST = "hottest ids (frequency 0 to 255)"


def is_delta(path: Path) -> bool:
    """Returns whether a folder is that of a delta."""
    # The manifest decides, not the folder's place: a copy, or a server's own link, lies anywhere.
    from storage.checkpoint.delta_manifest import DELTA_FORMAT
    from storage.checkpoint.signed import MAX_MANIFEST_BYTES

    if not (path / MANIFEST).is_file():
        return False
    with (path / MANIFEST).open("rb") as file:
        return f'"format":"{DELTA_FORMAT}"'.encode() in file.read(MAX_MANIFEST_BYTES)


def version_view(path: Path, hottest: int, *, verify: bool) -> View:
    """Describes a version and its deltas. hottest: ids to list for each table. verify: compute every digest."""
    from storage import open_version

    version = open_version(path, verify=verify)
    manifest = version.manifest
    total = sum(entry.size for entry in manifest.files)
    head = f"version {manifest.version}, snapshot {manifest.snapshot}"
    if manifest.equals is not None:
        head += f" (equal to {manifest.equals})"
    names = (whole("row type"), "MiB", wrapping("saved"), wrapping(_HOTTEST))
    tables = FittedTable(wrapping("name"), wrapping("kind"), "rows", "dim", *names, title="tables")
    found = []
    for entry, made in zip(version.tables, manifest.tables, strict=True):
        hot = _hottest(version.shards(entry.name), hottest)
        size = entry.rows * (entry.row_bytes + 9)
        row = (entry.name, str(made.kind), f"{entry.rows:,}", str(entry.dim), entry.row_type, f"{size / 2**20:.1f}")
        tables.add_row(*row, _saved(entry), _hottest_text(hot))
        found.append({**_table_of(entry), "kind": str(made.kind), "bytes": size, "hottest": hot})
    inputs = FittedTable(wrapping("name"), whole("type"), whole("shape"), whole(""), title="inputs of a request")
    for wire in version.spec.wire_inputs():
        inputs.add_row(wire.name, wire.dtype, str([-1, *wire.dims]), "optional" if wire.optional else "")
    fallbacks = {each.name: list(each.fallback) for each in version.spec.ids_features if each.fallback}
    graph = FittedTable(wrapping("name"), whole("kind"), wrapping("source"), whole("shape"), title="dense graph")
    for given in manifest.graph.inputs:
        graph.add_row(given.name, given.kind, given.source, str(list(given.shape)))
    for output in manifest.graph.outputs:
        graph.add_row(output.name, "output", "", str(list(output.shape)))
    golden = version.golden()
    deltas, shown = _deltas(version, verify=verify)
    notes = rounding_lines(manifest.metadata)
    document = {
        "kind": "version",
        "path": str(path),
        "version": manifest.version,
        "snapshot": manifest.snapshot,
        "equals": manifest.equals,
        "files": len(manifest.files),
        "bytes": total,
        "verified": verify,
        "tables": found,
        "notes": notes,
        "inputs": [
            {"name": each.name, "datatype": each.dtype, "shape": [-1, *each.dims], "optional": each.optional}
            for each in version.spec.wire_inputs()
        ],
        "fallbacks": fallbacks,
        "graph": {
            "inputs": [
                {"name": each.name, "kind": each.kind, "source": each.source, "shape": list(each.shape)}
                for each in manifest.graph.inputs
            ],
            "outputs": [{"name": each.name, "shape": list(each.shape)} for each in manifest.graph.outputs],
        },
        "golden": {"rows": golden.batch, "tolerance": golden.tolerance},
        "deltas": deltas,
    }
    parts: list[str | FittedTable] = [
        f"{head}: {len(manifest.files)} files, {total:,} bytes, {_state(verify)}",
        tables,
        *notes,
        inputs,
        *(f"ids of {name} without a row read that of {', then '.join(chain)}" for name, chain in fallbacks.items()),
        graph,
        f"golden requests: {golden.batch} rows, tolerance {golden.tolerance:g}",
    ]
    return View(document, [*parts, *([shown] if deltas else [])])


def _deltas(version: PublishedVersion, *, verify: bool) -> tuple[list[dict[str, Any]], FittedTable]:
    from storage import list_deltas, open_delta
    from storage.checkpoint.deltas import DELTAS, sequence_name

    names = ("changes since", "rows", "removed", "bytes", wrapping("state"))
    shown = FittedTable(whole("delta"), elided("snapshot"), elided("parent"), *names, title="deltas")
    found: list[dict[str, Any]] = []
    for sequence in list_deltas(version.path):
        name = f"{version.version}.{sequence}"
        try:
            delta = open_delta(version.path / DELTAS / sequence_name(sequence), verify=verify)
        except (CheckpointError, NotFound, ReadError) as error:
            shown.add_row(name, "", "", "", "", "", "", _problem(error))
            found.append({"delta": name, "problem": str(error)})
            continue
        manifest = delta.manifest
        since = f"{version.version}.{manifest.from_sequence}"
        rows = sum(entry.rows for entry in manifest.tables)
        removed = sum(entry.removed for entry in manifest.tables)
        counts = (f"{rows:,}", f"{removed:,}", f"{delta.size_bytes:,}")
        shown.add_row(name, delta.snapshot, delta.parent, since, *counts, _state(verify))
        found.append(
            {
                "delta": name,
                "snapshot": delta.snapshot,
                "parent": delta.parent,
                "changes_since": since,
                "rows": rows,
                "removed": removed,
                "bytes": delta.size_bytes,
                "verified": verify,
            }
        )
    return found, shown


def delta_view(path: Path, hottest: int, *, verify: bool) -> View:
    """Describes a delta. hottest, verify: as for `version_view`."""
    from storage import open_delta

    delta = open_delta(path, verify=verify)
    manifest = delta.manifest
    name = f"{manifest.version}.{manifest.sequence}"
    since = f"{manifest.version}.{manifest.from_sequence}"
    created = datetime.fromtimestamp(manifest.created_unix_ms / 1000, UTC).isoformat(" ", "seconds")
    names = ("rows", "removed", "dim", whole("row type"), wrapping(_HOTTEST), elided("fingerprint"))
    tables = FittedTable(wrapping("name"), *names, title="tables")
    found = []
    for entry in manifest.tables:
        hot = _hottest(delta.shards(entry.name), hottest)
        counts = (f"{entry.rows:,}", f"{entry.removed:,}", str(entry.dim))
        tables.add_row(entry.name, *counts, entry.row_type, _hottest_text(hot), entry.fingerprint)
        removed = {"removed": entry.removed, "hottest": hot, "fingerprint": entry.fingerprint}
        found.append({**_table_of(entry), **removed})
    others = [snapshot for snapshot in delta.applies_to if snapshot != delta.parent]
    notes, dense = rounding_lines(manifest.metadata), _dense(delta)
    document = {
        "kind": "delta",
        "path": str(path),
        "delta": name,
        "snapshot": delta.snapshot,
        "bytes": delta.size_bytes,
        "verified": verify,
        "created_unix_ms": manifest.created_unix_ms,
        "changes_since": since,
        "parent": delta.parent,
        "applies_to": list(delta.applies_to),
        "tables": found,
        "notes": notes,
        "dense": {"holds": dense, "fingerprint": manifest.dense_fingerprint},
        "golden": {"rows": manifest.golden.batch, "tolerance": manifest.golden.tolerance},
    }
    parts: list[str | FittedTable] = [
        f"delta {name}, snapshot {delta.snapshot}: {delta.size_bytes:,} bytes, {_state(verify)}",
        f"made {created}; holds all changes after {since}",
        f"goes on from the snapshot {delta.parent}",
    ]
    if others:
        parts.append(f"applies to {len(others)} more: {', '.join(others[:4])}{', ...' if others[4:] else ''}")
    golden = f"golden requests: {manifest.golden.batch} rows, tolerance {manifest.golden.tolerance:g}"
    weights = f"dense weights: {dense}, fingerprint {manifest.dense_fingerprint}"
    return View(document, [*parts, tables, *notes, weights, golden])


def repository_view(path: Path, *, verify: bool) -> View:
    """Describes the models and versions of a repository, or of a model's folder. Raises NotFound where it has none."""
    from storage import list_deltas, open_version

    folders = [path] if any(child.name.isdecimal() for child in path.iterdir()) else sorted(path.iterdir())
    names = ("version", "rows", "MiB", "deltas", wrapping("state"))
    models = FittedTable(wrapping("model"), *names, title=f"models in {path}")
    found: list[Mapping[str, Any]] = []
    for model in (folder for folder in folders if folder.is_dir() and not folder.name.startswith(".")):
        for number in sorted(int(child.name) for child in model.iterdir() if child.name.isdecimal()):
            try:
                version = open_version(model / str(number), verify=verify)
            except (CheckpointError, NotFound, ReadError) as error:
                models.add_row(model.name, str(number), "", "", "", _problem(error))
                found.append({"model": model.name, "version": number, "problem": str(error)})
                continue
            size = sum(entry.size for entry in version.manifest.files)
            rows = sum(entry.rows for entry in version.tables)
            deltas = len(list_deltas(version.path))
            models.add_row(model.name, str(number), f"{rows:,}", f"{size / 2**20:.1f}", str(deltas), _state(verify))
            counts = {"rows": rows, "bytes": size, "deltas": deltas}
            found.append({"model": model.name, "version": number, **counts, "verified": verify})
    if not found:
        raise NotFound(f"{path}: holds no published version (folders NAME/NUMBER with a {MANIFEST})")
    return View({"kind": "repository", "path": str(path), "models": found}, [models])


def _table_of(entry: Any) -> dict[str, Any]:
    return {"name": entry.name, "rows": entry.rows, "dim": entry.dim, "row_type": entry.row_type}


def _dense(delta: PublishedDelta) -> str:
    """Returns what a delta holds of the dense weights."""
    dense = delta.manifest.dense
    if dense is None:
        return f"all {len(delta.weights())} tensors"
    size = next(entry.size for entry in delta.manifest.files if entry.path.startswith("dense."))
    return f"{len(delta.changed_weights())} tensors as a difference of {size:,} bytes to {dense.against}"


def _saved(table: TableSpec) -> str:
    """Returns the bytes that a table's rows save against fp32."""
    less = table.rows * (4 * table.dim - table.row_bytes)
    return f"{less / 2**20:.1f} MiB ({1 - table.row_bytes / (4 * table.dim):.0%})" if less else ""


def _problem(error: Exception) -> str:
    return str(error) if isinstance(error, ReadError) else f"refused: {error}"


def _state(verify: bool) -> str:
    return "every digest holds" if verify else "digests not checked"


def _hottest(shards: Iterable[Shard], count: int) -> list[dict[str, int]]:
    import numpy as np

    found: list[tuple[int, int]] = []
    for shard in shards:
        best = np.argsort(-shard.freq.astype(np.int64), kind="stable")[:count]
        found.extend((int(shard.freq[i]), int(shard.ids[i])) for i in best)
        found = heapq.nlargest(count, found, key=lambda pair: pair[0])
    return [{"id": number, "frequency": freq} for freq, number in found]


def _hottest_text(hottest: Iterable[Mapping[str, int]]) -> str:
    return ", ".join(f"{each['id']} ({each['frequency']})" for each in hottest)
