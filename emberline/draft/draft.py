"""Drafts a configuration: reads a sample, treats each column, and writes the YAML with what was found."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emberline.draft.document import Document
from emberline.draft.findings import why_leaking, why_useless
from emberline.draft.label import LabelDraft, draft_label, find_label
from emberline.draft.network import (
    MODELS,
    SEQUENCE_MODELS,
    TASK_MODELS,
    TOWERS,
    Part,
    in_towers,
    network,
    sequence_network,
)
from emberline.draft.sample import ColumnSample, delimiter_option, describe, plain_column, read_sample
from emberline.draft.text import text
from emberline.draft.treatment import BINS, shared_columns, treat
from storage.data import DataOptions
from storage.errors import ConfigError
from storage.features.strict_model import did_you_mean
from trainer.config import TrainConfig, parse_text
from trainer.data import BatchMaker
from trainer.task_config import ONLY_TASK

_NOT_OF_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_AT_MOST, _SHORTENED = 64, 48
_ORDER = (
    "{earlier} is read in its order, the newest id last. Where the newest is first, give newest: first to sasrec and "
    "hstu, and keep: first to truncate."
)
_CHECKED_ROWS = 1000


@dataclass(frozen=True)
class Draft:
    """A configuration that trains as it is."""

    text: str
    config: TrainConfig
    #: Rows that were looked at, and rows of the data.
    sample_rows: int
    rows: int
    #: Columns that are no input, and why.
    left_out: tuple[tuple[str, str], ...]


def draft(
    data: list[Any],
    labels: str | Sequence[str],
    *,
    model: str = "wide_deep",
    item: Sequence[str] = (),
    name: str | None = None,
    rows: int = 200_000,
    quantiles: int | None = None,
    options: DataOptions | None = None,
) -> Draft:
    """Drafts the configuration of a model of `data`, which learns these columns, a task for each.

    model: one of MODELS. item: the columns of the item, its id first; of two_tower alone. name: the name of the model;
    that of the first file by default. rows: of the sample at most. quantiles: all numbers become ids of so many ranges.
    Raises ConfigError for data that cannot be read, for a label that is none, and for a model that the data does not
    suit.
    """
    options = options or DataOptions()
    labels = [labels] if isinstance(labels, str) else list(dict.fromkeys(labels))
    _check_count(labels, model)
    reading, total = read_sample(data, options, rows, labels)
    table, options = reading.table, reading.options
    columns = describe(table)
    _check_text(columns, options)
    targets = [find_label(columns, label, text) for label in labels]
    learned = [draft_label(target, text) for target in targets]
    _check_item(columns, labels, learned, model, item)
    left_out: list[tuple[str, str]] = []
    kept: list[ColumnSample] = []
    for column in columns:
        if column in targets:
            continue
        why = why_useless(column)
        for label in learned:
            why = why or why_leaking(column, plain_column(table, column.name), label.values)
        if why is None:
            kept.append(column)
        else:
            left_out.append((column.name, why))
    shared = shared_columns(kept)
    sequence = _sequence(shared, model) if model in SEQUENCE_MODELS else None
    parts = _parts(kept, left_out, shared, sequence, item[:1], quantiles)
    reasons = "; ".join(f"{column}: {why}" for column, why in left_out)
    if not parts:
        said = ", ".join(map(repr, labels))
        raise ConfigError(f"the data has no column to learn from beside {said} ({reasons})", field="data")
    remark = ""
    if sequence is not None:
        target, earlier = (_names([*(c.name for c in kept)])[name] for name in sequence)
        section, remark = sequence_network(model, target, earlier), _ORDER.format(earlier=text(earlier))
    elif model == TOWERS:
        _check_sides(parts, item, reasons)
        parts, section = in_towers(parts, item)
        remark = "The columns that are given as --item are the item's, the others the user's."
    else:
        section = network(model, total)
    document = Document(
        name=name or _model_name(data),
        labels=_by_task(learned),
        parts=parts,
        left_out=tuple(left_out),
        model=model,
        network=section,
        remark=remark,
        rows=total,
        sample_rows=table.num_rows,
        options=options,
        null_words=reading.null_words,
        arguments=shlex.join(map(str, data)),
    )
    written = document.text()
    config = parse_text(written, source="the draft")
    _try(config, table)
    return Draft(written, config, table.num_rows, total, tuple(left_out))


def _check_count(labels: Sequence[str], model: str) -> None:
    if model == TOWERS and len(labels) > 1:
        raise ConfigError(f"--label: {TOWERS} learns one label, got {', '.join(labels)}", field="label")
    if model in TASK_MODELS and len(labels) < 2:
        raise ConfigError(
            f"--model {model} learns several labels at once; give --label once for each, or choose another model",
            field="label",
        )


def _check_item(
    columns: Sequence[ColumnSample],
    labels: Sequence[str],
    learned: Sequence[LabelDraft],
    model: str,
    item: Sequence[str],
) -> None:
    """Raises ConfigError for columns of the item that are none, or for a model that does not ask for them."""
    known = [column.name for column in columns if column.name not in labels]
    if (model == TOWERS) != bool(item):
        said = (
            f"--model {TOWERS} has to know the item's columns; give --item COLUMN once for each, the item's id first. "
            "All other columns are the user's"
            if not item
            else f"--item is for --model {TOWERS}, got {model}"
        )
        raise ConfigError(said, field="item")
    for name in item:
        if name not in known:
            raise ConfigError(f"--item: the data has no column {name!r}{did_you_mean(name, known)}", field="item")
    if model == TOWERS and learned[0].is_quantity:
        raise ConfigError(
            f"--label: {labels[0]!r} is {learned[0].found}; {TOWERS} needs a label of two values, or a rating",
            field="label",
        )


def _check_sides(parts: Sequence[Part], item: Sequence[str], reasons: str) -> None:
    columns = [part.column for part in parts if part.features]
    if item[0] not in columns:
        raise ConfigError(f"--item: {item[0]!r}, the id of the item, was left out ({reasons})", field="item")
    if not set(columns) - set(item):
        raise ConfigError(
            f"--item: {', '.join(item)} leaves no column for the user; name those of the item alone", field="item"
        )


def _by_task(learned: Sequence[LabelDraft]) -> dict[str, LabelDraft]:
    """Returns labels by the names of their tasks: `score` for one alone, else those of the columns where possible."""
    if len(learned) == 1:
        return {ONLY_TASK: learned[0]}
    found: dict[str, LabelDraft] = {}
    for place, label in enumerate(learned, 1):
        plain = re.sub(r"\W", "_", _name(label.column), flags=re.ASCII)
        name = plain[:_SHORTENED] if re.match(r"[A-Za-z_]", plain) else f"task_{place}"
        found[name if name not in found else f"{name}_{place}"] = label
    return found


def _sequence(shared: Mapping[str, str], model: str) -> tuple[str, str]:
    """Returns the column of single ids and that of the lists of them, the first there is. Raises ConfigError."""
    for of_lists, single in shared.items():
        return single, of_lists
    raise ConfigError(
        f"--model {model} reads the list of what came before the item, but no column holds lists of the ids of another "
        "one; choose another model, or add such a column",
        field="model",
    )


def _parts(
    kept: Sequence[ColumnSample],
    left_out: list[tuple[str, str]],
    shared: Mapping[str, str],
    sequence: tuple[str, str] | None,
    ids: Sequence[str] = (),
    quantiles: int | None = None,
) -> list[Part]:
    names = _names([column.name for column in kept])
    # A list of ids that another column holds too says that those integers are ids.
    of_lists = {*shared.values(), *ids}
    choices = (0, BINS) if quantiles is None else (quantiles,)
    for bins in choices:
        parts: list[Part] = []
        for column in kept:
            of = shared.get(column.name)
            treatment = treat(
                column,
                shared=None if of is None else names[of],
                is_sequence=sequence is not None and column.name == sequence[1],
                as_ids=column.name in of_lists,
                bins=bins,
            )
            if treatment is None:
                if bins == choices[0]:
                    left_out.append((column.name, "lists of numbers of several lengths; no feature takes them"))
                continue
            taken = {*names.values()} - {names[column.name]}
            features = tuple(
                feature for feature in treatment.features if names[column.name] + feature.suffix not in taken
            )
            parts.append(Part(column.name, names[column.name], treatment, features))
        if any("output: ids" in feature.rest for part in parts for feature in part.features):
            return parts
    return parts


def _names(columns: Sequence[str]) -> dict[str, str]:
    """Returns a name for each column that features may have."""
    names: dict[str, str] = {}
    for place, column in enumerate(columns, 1):
        name = plain = _name(column) or f"column_{place}"
        number = 2
        while name in names.values() or (name in columns and name != column):
            name, number = f"{plain}_{number}", number + 1
        names[column] = name
    return names


def _name(column: str) -> str:
    """Returns what a column's name has of letters and digits in ASCII; an empty text for one without any."""
    plain = "".join(sign for sign in unicodedata.normalize("NFKD", column) if not unicodedata.combining(sign))
    name = _NOT_OF_NAMES.sub("_", plain)
    if name != column:
        name = name.strip("_-")
    # Features of a column have its name and a suffix.
    return name.lstrip("-") if len(name) <= _NAME_AT_MOST else name[:_SHORTENED].strip("_-")


def _model_name(data: list[Any]) -> str:
    first = re.split(r"[/\\]", str(data[0]).rstrip("/"))[-1].split(".")[0]
    plain = _NOT_OF_NAMES.sub("_", first).strip("_-:")
    generic = plain in ("", "train", "data", "part", "valid", "test")
    return "model" if generic else plain.lower().replace(":", "_")[:100]


def _check_text(columns: Sequence[ColumnSample], options: DataOptions) -> None:
    if len(columns) > 1 or options.delimiter is not None:
        return
    found = delimiter_option(columns[0].name)
    if found is not None:
        raise ConfigError(
            f"the data has one column only, called {columns[0].name!r}; is there another delimiter? add {found}",
            field="data",
        )


def _try(config: TrainConfig, table: Any) -> None:
    """Computes the features of some rows, as training will. Raises InvalidInput."""
    maker = BatchMaker(config.spec, config.targets)
    maker.inputs(table.slice(0, _CHECKED_ROWS))


__all__ = ["MODELS", "Draft", "LabelDraft", "draft"]
