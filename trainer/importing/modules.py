"""The module around imported tables, prepared for publishing, and which table of the files each of its tables is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import nn

from storage.errors import ConfigError
from storage.features.strict_model import did_you_mean
from storage.importing import FileTable
from storage.importing.source import tables_by_name
from trainer.evaluate import evaluation_mode
from trainer.importing.stand_ins import check_plain, stand_ins
from trainer.importing.tables_alone import POOLINGS, TablesAlone, first_ids, sample_of, spec_of
from trainer.publishing.embedding_layers import TableSource
from trainer.publishing.prepared_module import PreparedModule, unwrapped


@dataclass(frozen=True)
class Around:
    """A module and its preparation. pooling: by table, of a model of tables alone; empty for a module of the user's."""

    module: nn.Module
    prepared: PreparedModule
    pooling: Mapping[str, str]

    @property
    def sources(self) -> dict[str, TableSource]:
        """The module's tables by name."""
        return {source.name: source for source in self.prepared.plan.tables}


def prepare(
    stack: ExitStack,
    module: nn.Module | None,
    sample_batch: object,
    tables: Sequence[FileTable],
    pooling: str | Mapping[str, str],
) -> Around:
    """Records the module with rows made of ids, in eval() and no_grad() while the stack is open.

    module: None for the model of the tables alone. Raises what preparing a module raises, and Unsupported for one whose
    tables have rows.
    """
    spec, pooled = None, {}
    if module is None:
        pooled = poolings(pooling, [table.name for table in tables])
        module = TablesAlone({table.name: table.dim for table in tables}, pooled)
        spec = spec_of(tables, pooled)
        sample_batch = sample_of({table.name: first_ids(table) for table in tables}, pooled)
    module = unwrapped(module)
    for path, layer in module.named_modules():
        check_plain(path, layer)
    stack.enter_context(evaluation_mode(module))
    stack.enter_context(torch.no_grad())
    with stand_ins(module):
        return Around(module, PreparedModule.of(module, sample_batch, spec), pooled)


def matched(
    tables: Sequence[FileTable], sources: Mapping[str, TableSource], mapping: dict[str, str], *, all_needed: bool = True
) -> tuple[dict[str, FileTable], list[str]]:
    """Returns the table of the files for each table of the module, and the names of those that none needs.

    mapping: table of the files -> table of the module. all_needed: every table of the module has to be in the files.
    Raises ConfigError.
    """
    by_name = tables_by_name(tables)
    for given, wanted in mapping.items():
        if given not in by_name:
            raise ConfigError(
                f"--map {given}={wanted}: the files have no table {given!r}{did_you_mean(given, by_name)}"
            )
        if wanted not in sources:
            raise ConfigError(
                f"--map {given}={wanted}: the module has no table {wanted!r}{did_you_mean(wanted, sources)}"
            )
    targets = {table.name: mapping.get(table.name, table.name) for table in tables}
    chosen: dict[str, FileTable] = {}
    for given, wanted in targets.items():
        if wanted in chosen:
            raise ConfigError(f"--map: the tables {chosen[wanted].name!r} and {given!r} are both to be {wanted!r}")
        if wanted in sources:
            chosen[wanted] = by_name[given]
    for wanted, source in sources.items():
        if wanted not in chosen:
            if not all_needed:
                continue
            raise ConfigError(
                f"the module's table {wanted!r} is in no file; the files have {', '.join(sorted(by_name))}. "
                f"--map TABLE={wanted} says which one it is",
                field="--map",
            )
        if chosen[wanted].dim != source.dim:
            raise ConfigError(
                f"the module's table {wanted!r} has rows of {source.dim} values, {chosen[wanted].name!r} of the files "
                f"has {chosen[wanted].dim}",
                field="dim",
            )
    return chosen, [given for given, wanted in targets.items() if wanted not in sources]


def poolings(given: str | Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Returns how each table answers alone. given: for all, or by table, "" for the rest. Raises ConfigError."""
    by_table = {"": given} if isinstance(given, str) else dict(given)
    for table, pooling in by_table.items():
        if table and table not in names:
            raise ConfigError(f"--pooling: there is no table {table!r}{did_you_mean(table, names)}", field="pooling")
        if pooling not in POOLINGS:
            raise ConfigError(f"--pooling {pooling!r}: expected one of {', '.join(POOLINGS)}", field="pooling")
    return {name: by_table.get(name, by_table.get("", "row")) for name in names}
