"""Publishes tables of files as a version: with a module whose embedding layers read them, or alone.

The module is recorded, cut and exported before a row is read. Then the rows go from the files into the version, and the
golden requests are scored with the rows that were written.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from storage.checkpoint import Golden, TableData, write_version
from storage.checkpoint.graph import DenseGraph
from storage.checkpoint.install import make_place, publishing
from storage.checkpoint.program import PackedProgram, pack_program
from storage.checkpoint.streams import WrittenRows
from storage.errors import ConfigError, InvalidInput
from storage.features import Column
from storage.importing import FileTable
from storage.initializers import AbsentRows
from storage.rows import RowCodec
from storage.specs import check_model_name
from trainer.importing.modules import Around, matched, poolings, prepare
from trainer.importing.progress import Progress, counted, silent
from trainer.importing.scratch import temporary_folder
from trainer.importing.sorted_table import ImportedTable, SortedTable
from trainer.importing.stand_ins import stand_in_table
from trainer.importing.tables_alone import sample_of
from trainer.publishing.embedding_layers import TableSource
from trainer.publishing.export import export_half
from trainer.publishing.golden import golden_columns
from trainer.publishing.lineage import Lineage
from trainer.publishing.parity import ParityChecker
from trainer.publishing.prepared_module import PreparedModule
from trainer.publishing.publish_version import GOLDEN_REQUESTS_AT_LEAST, loaded_graph
from trainer.publishing.row_types import RowTypes
from trainer.publishing.target import Target

MEMORY_BYTES = 512 << 20
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class ImportReport:
    """Describes an import. folder: that of the version, on this machine. unused: tables of the files without a use."""

    folder: Path
    tables: tuple[ImportedTable, ...]
    unused: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Ready:
    """A module and the tables of the files for it, checked as far as that can be done without the rows."""

    around: Around
    #: By table of the module.
    chosen: Mapping[str, FileTable]
    stored_as: Mapping[str, str]
    codecs: Mapping[str, RowCodec]
    unused: Sequence[str]
    packed: PackedProgram
    graph: DenseGraph

    @classmethod
    def of(
        cls,
        stack: ExitStack,
        module: nn.Module | None,
        sample_batch: object,
        tables: Sequence[FileTable],
        mapping: Mapping[str, str] | None,
        pooling: str | Mapping[str, str],
        row_types: str | Mapping[str, str] | None,
    ) -> _Ready:
        """Records and exports the module, in eval() and no_grad() while the stack is open. Raises as an import does."""
        around = prepare(stack, module, sample_batch, tables, pooling)
        prepared, sources = around.prepared, around.sources
        chosen, unused = matched(tables, sources, dict(mapping or {}))
        stored_as = _row_types(row_types, list(sources))
        for name, source in sources.items():
            _absent(source, chosen[name])
        stand_in = {name: stand_in_table(source, stored_as[name]) for name, source in sources.items()}
        codecs = {name: table.codec for name, table in stand_in.items()}
        checker = ParityChecker(prepared, stand_in, codecs, _TOLERANCE)
        tensors = checker.sample_tensors()
        checker.check_sample(tensors)
        program = export_half(prepared.half, tensors)
        packed = pack_program(program, prepared.plan.graph_inputs(), prepared.outputs)
        graph = loaded_graph(packed)
        checker.check_graph(graph, tensors)
        return cls(around, chosen, stored_as, codecs, unused, packed, graph)

    def sorted_tables(self, memory_bytes: int, scratch: Path, progress: Progress) -> dict[str, SortedTable]:
        """Returns what reads the rows of each table of the module."""
        return {
            name: SortedTable(
                self.chosen[name],
                self.stored_as[name],
                memory_bytes,
                scratch,
                name=name,
                absent=_absent(source, self.chosen[name]),
                hidden=source.hidden,
                progress=counted(self.chosen[name], progress),
            )
            for name, source in self.around.sources.items()
        }


def look_at_tables(
    tables: Sequence[FileTable],
    *,
    module: nn.Module | None = None,
    sample_batch: object = None,
    mapping: Mapping[str, str] | None = None,
    pooling: str | Mapping[str, str] = "row",
    row_types: str | Mapping[str, str] | None = None,
    memory_bytes: int = MEMORY_BYTES,
    progress: Progress = silent,
) -> list[ImportedTable]:
    """Reads and sorts all rows, as an import does, and writes nothing but temporary files, which are gone afterwards.

    A module is checked with the tables before a row is read, and only the tables that it uses are read. The arguments
    are those of `import_tables`, and so is what is raised; StoreError where temporary files cannot be written.
    """
    with ExitStack() as stack:
        ready = None
        if module is not None:
            ready = _Ready.of(stack, module, sample_batch, tables, mapping, pooling, row_types)
        else:
            poolings(pooling, [table.name for table in tables])
        scratch = stack.enter_context(temporary_folder())
        if ready is not None:
            return [table.read() for table in ready.sorted_tables(memory_bytes, scratch, progress).values()]
        stored_as = _row_types(row_types, [table.name for table in tables])
        return [
            SortedTable(table, stored_as[table.name], memory_bytes, scratch, progress=counted(table, progress)).read()
            for table in tables
        ]


def import_tables(
    tables: Sequence[FileTable],
    repository: Path | str,
    *,
    name: str,
    module: nn.Module | None = None,
    sample_batch: object = None,
    mapping: Mapping[str, str] | None = None,
    pooling: str | Mapping[str, str] = "row",
    row_types: str | Mapping[str, str] | None = None,
    version: int | None = None,
    max_batch_size: int = 1024,
    memory_bytes: int = MEMORY_BYTES,
    metadata: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> ImportReport:
    """Publishes tables of files as repository/name/VERSION.

    repository: a folder or a URL. module, sample_batch: as `publish` takes them; made inside `rows_elsewhere`, the
    embedding layers take no memory, and whatever rows they have are not read. None: the version answers with the rows
    of the tables, or as `pooling` says, for all or by table ("row", "sum" or "mean"). mapping: table of the files ->
    table of the module, for those that are called otherwise. memory_bytes: about how much the rows of a table may take
    while they are sorted. Raises InvalidInput for files that cannot be imported, ConfigError for names that do not fit,
    and what `publish` raises for a module.
    """
    check_model_name(name)
    target = Target.of(repository, name)
    target.bring(Lineage())
    with ExitStack() as stack:
        ready = _Ready.of(stack, module, sample_batch, tables, mapping, pooling, row_types)
        prepared, pooled = ready.around.prepared, ready.around.pooling
        make_place(target.model_dir)
        scratch = stack.enter_context(publishing(target.model_dir))
        read = ready.sorted_tables(memory_bytes, scratch, progress)

        def golden(written: WrittenRows) -> Golden:
            progress("golden requests", 0, 1)
            rows = _Rows(written, read)
            columns = dict(prepared.plan.columns)
            if pooled:
                columns = sample_of({name: table.ids() for name, table in read.items()}, pooled)
            known = rows.tables({name: [*rows.asked(prepared, columns, name), read[name].ids()] for name in read})
            drawn, count = golden_columns(columns, prepared.plan.spec, list(known.values()), GOLDEN_REQUESTS_AT_LEAST)
            scored = rows.tables({name: rows.asked(prepared, drawn, name) for name in read})
            result = ParityChecker(prepared, scored, ready.codecs, _TOLERANCE, ready.graph).golden(drawn, count)
            progress("golden requests", 1, 1)
            return result

        snapshot = secrets.token_hex(16)
        folder = write_version(
            target.model_dir,
            version=target.claim_version(snapshot, version),
            spec=prepared.plan.spec,
            tables=[table.stream() for table in read.values()],
            graph=ready.packed,
            graph_inputs=prepared.plan.graph_inputs(),
            graph_outputs=prepared.outputs,
            golden=golden,
            max_batch_size=max_batch_size,
            metadata=lambda: {**(metadata or {}), **_described(read)},
            snapshot=snapshot,
            erased_unix_ms=target.erased_unix_ms(),
        )
        target.publish(folder)
    return ImportReport(folder, tuple(table.found() for table in read.values()), tuple(ready.unused))


class _Rows:
    """Makes small tables of rows that were written, for golden requests."""

    def __init__(self, written: WrittenRows, read: Mapping[str, SortedTable]) -> None:
        self._written = written
        self._read = read

    def asked(self, prepared: PreparedModule, columns: Mapping[str, Column], table: str) -> list[np.ndarray]:
        """Returns the ids of a table that raw rows ask for."""
        batch = prepared.engine.run(columns, max(column.rows for column in columns.values()))
        return [batch.ids[entry.name].values for entry in prepared.plan.spec.ids_features if entry.table == table]

    def tables(self, ids: Mapping[str, list[np.ndarray]]) -> dict[str, TableData]:
        """Returns the tables with those of the ids that have a row."""
        found: dict[str, TableData] = {}
        for name, asked in ids.items():
            spec = self._read[name].spec
            shard = self._written.find(name, np.concatenate(asked) if asked else np.empty(0, np.int64))
            found[name] = TableData(name, spec.dim, shard.ids, shard.rows, shard.freq, spec.row_type, spec.absent)
        return found


def _absent(source: TableSource, table: FileTable) -> AbsentRows:
    own = source.absent
    if source.hidden is not None and not table.absent.is_zero:
        raise ConfigError(
            f"table {source.name!r}: a layer with padding_idx reads the padding as nothing, and the default vector of "
            f"{table.name!r} is {table.absent}; drop padding_idx, or give --default {table.name}=0"
        )
    if not own.is_zero and not table.absent.is_zero and own != table.absent:
        raise ConfigError(
            f"table {source.name!r}: the module reads ids without a row as {own}, the files as {table.absent}; give "
            f"--default {table.name}=VALUE, or leave it to one of them"
        )
    return table.absent if own.is_zero else own


def _row_types(given: str | Mapping[str, str] | None, names: Sequence[str]) -> dict[str, str]:
    if not names:
        raise InvalidInput("the files hold no table")
    asked = RowTypes.of(given)
    asked.check_names(names)
    return {**asked.resolved(names, None)}


def _described(read: Mapping[str, SortedTable]) -> dict[str, Any]:
    """Describes rounded tables for a manifest's metadata, as `rounding_metadata` does."""
    found = [table.found() for table in read.values()]
    report = {
        entry.name: {
            "row_type": entry.row_type,
            "largest_error": entry.largest_error,
            "mean_error": entry.mean_error,
            "bytes": entry.rows * read[entry.name].spec.row_bytes,
            "bytes_as_fp32": entry.rows * entry.dim * 4,
        }
        for entry in found
        if entry.row_type != "fp32" and entry.rows
    }
    return {"rounding": report} if report else {}
