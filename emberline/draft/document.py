"""The YAML of a draft: columns that are treated alike share an entry, and comments say what was found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy as np

from emberline.draft.label import LabelDraft
from emberline.draft.network import LARGE_ROWS, SMALL_ROWS, TOWERS, Part, optimizer
from emberline.draft.text import names, text
from emberline.draft.treatment import FeatureDraft
from storage.data import DataOptions

_EACH = "$each"
_COLUMNS = 118
_TIMES = {"hours": 24, "weekdays": 7}


@dataclass(frozen=True)
class Document:
    """All that the YAML says."""

    name: str
    #: What is learned, by the name of its task.
    labels: Mapping[str, LabelDraft]
    parts: Sequence[Part]
    left_out: Sequence[tuple[str, str]]
    model: str
    #: The section `model`, as YAML, and a comment of it.
    network: str
    remark: str
    rows: int
    sample_rows: int
    options: DataOptions
    #: Words that stand for no value, by the column that has them.
    null_words: Mapping[str, Sequence[str]]
    arguments: str

    def text(self) -> str:
        """Returns the YAML."""
        data = self._data()
        layout = " --data-config THIS.yaml" if data else ""
        lines = [
            *_comment(
                f"Drafted from {self.sample_rows:,} of {self.rows:,} rows. Train, serve and ask (docs/newcomer.md):"
            ),
            f"#   emberline train THIS.yaml --data {self.arguments} --valid 0.1 --output runs/{self.name} \\",
            "#       --repository models",
            "#   emberline serve --model-repository models",
            f"#   emberline predict {self.name} --data {self.arguments}{layout} --rows 5",
            *_comment(
                "--valid 0.1 holds the last tenth of the rows out, so sort them by time if later rows are to be "
                "predicted. docs/training.md and docs/features.md explain every entry."
            ),
            f"model_name: {text(self.name)}",
            *self._learned(),
            *data,
            "",
            *(line for group in self._found() for line in _comment(group)),
            "inputs:",
            *self._inputs(),
            "",
            "features:",
            *self._features(),
            "",
            *_comment(
                "A table holds a row for each id. A larger dim fits more and overfits sooner; admit_after: 2 gives no "
                "row to ids that come once; kind: hashed bounds the rows (docs/table-kinds.md)."
            ),
            "tables:",
            *self._tables(),
            "",
            *_comment(self.remark),
            f"model: {self.network}".replace(": \n", ":\n"),
            *_comment("How fast ids learn that are seen once: docs/tuning.md."),
            "optimizer:",
            *(f"  {line}" for line in optimizer(self.model, self._steps())),
            *self._training(),
        ]
        return "\n".join(lines) + "\n"

    def _learned(self) -> list[str]:
        labels = self.labels
        if len(labels) > 1:
            comments = [line for label in labels.values() for line in _comment(f"{label.column}: {label.found}.")]
            if any(label.is_quantity for label in labels.values()):
                comments += _comment("A quantity's weight is one over the variance of its label.")
            return [*comments, "tasks:", *(label.task(name, weight=_weight(label)) for name, label in labels.items())]
        ((name, label),) = labels.items()
        comments = _comment(f"Label: {label.found}.")
        if self.model == TOWERS:
            learned = "loss: in_batch_softmax, metrics: [recall@10, recall@100, mrr]"
            return [*comments, f"tasks: [{{name: {name}, label: {label.label}, {learned}}}]"]
        return [*comments, *(["tasks:", label.task(name)] if label.is_quantity else [f"label: {label.label}"])]

    def _data(self) -> list[str]:
        said = self.options.model_dump(mode="json", exclude_defaults=True)
        if not said:
            return []
        words = sorted({word for found in self.null_words.values() for word in found})
        comment = (
            f"{', '.join(self.null_words)}: numbers, where {', '.join(words)} {'is' if len(words) == 1 else 'are'} no "
            "value; null_values says so for all columns."
        )
        return [*(_comment(comment) if words else []), f"data: {json.dumps(said, ensure_ascii=False)}"]

    def _found(self) -> list[str]:
        groups: dict[str, list[str]] = {}
        for part in self.parts:
            groups.setdefault(part.treatment.found, []).append(part.name)
        found = [f"{_plainly(members)}: {what}." for what, members in groups.items()]
        reasons: dict[str, list[str]] = {}
        for column, why in self.left_out:
            reasons.setdefault(why, []).append(column)
        return found + [f"Left out: {_plainly(members)} ({why})." for why, members in reasons.items()]

    def _inputs(self) -> list[str]:
        groups: dict[str, list[str]] = {}
        for part in self.parts:
            column = "" if part.column == part.name else f", column: {text(part.column)}"
            groups.setdefault(part.treatment.input + column, []).append(part.name)
        return [f"  - {{name: {names(members)}, {options}}}" for options, members in groups.items()]

    def _features(self) -> list[str]:
        groups: dict[FeatureDraft, list[str]] = {}
        for part in self.parts:
            for feature in part.features:
                groups.setdefault(feature, []).append(part.name)
        return [_feature(feature, members) for feature, members in groups.items()]

    def _tables(self) -> list[str]:
        dim = self._dim()
        groups: dict[str, list[str]] = {}
        for part in self.parts:
            if part.treatment.table is not None:
                groups.setdefault(part.treatment.table, []).append(part.name)
        lines = []
        for options, members in groups.items():
            more = f", {options}" if options else ""
            lines.append(f"  - {{name: {names(members)}, dim: {dim}, init: {{scale: 0.001}}{more}}}")
        used = {feature.rest for part in self.parts for feature in part.features}
        for name, rows in _TIMES.items():
            if any(f"table: {name}" in rest for rest in used):
                lines.append(f"  - {{name: {name}, kind: static, dim: {dim}, rows: {rows}, init: {{scale: 0.001}}}}")
        return lines

    def _dim(self) -> int:
        dim = 4 if self.rows < SMALL_ROWS else 8 if self.rows < LARGE_ROWS else 16
        # The first value of a row is its linear weight.
        return dim + 1 if self.model in ("deepfm", "wide_deep") else dim

    def _training(self) -> list[str]:
        return [
            *_comment("With --valid, `early_stopping: {patience: 1}` in `training` keeps the best of more epochs."),
            f"training: {{batch_size: {self._batch()}, epochs: {self._epochs()}, seed: 1}}",
        ]

    def _batch(self) -> int:
        return 128 if self.rows < SMALL_ROWS else 512 if self.rows < LARGE_ROWS else 2048

    def _epochs(self) -> int:
        return 5 if self.rows < SMALL_ROWS else 2 if self.rows < LARGE_ROWS else 1

    def _steps(self) -> int:
        """Returns the steps of the training, with --valid 0.1."""
        return max(1, self._epochs() * (self.rows * 9 // 10) // self._batch())


def _weight(label: LabelDraft) -> float | None:
    """Returns the weight of a task among several: that of a quantity makes its loss begin near 1."""
    return 1.0 / float(np.var(label.values)) if label.is_quantity else None


def _feature(feature: FeatureDraft, members: Sequence[str]) -> str:
    steps = f", transforms: [{', '.join(feature.transforms)}]" if feature.transforms else ""
    body = f"inputs: [{_EACH}]{steps}, {feature.rest}"
    if len(members) == 1:
        name = text(members[0])
        body = body.replace(_EACH, name)
        return _broken(f"  - {{name: {text(members[0] + feature.suffix)}, {body}}}")
    if feature.suffix:
        return _broken(f"  - {{each: {names(members)}, name: {_EACH}{feature.suffix}, {body}}}")
    return _broken(f"  - {{name: {names(members)}, {body}}}")


def _broken(line: str) -> str:
    """Returns an entry in two lines where it is long."""
    return line if len(line) <= _COLUMNS else line.replace(", output:", ",\n     output:", 1)


def _plainly(members: Iterable[str]) -> str:
    shown = names(list(members))
    return shown[1:-1] if shown.startswith("[") else shown


def _comment(words: str) -> list[str]:
    return wrap(words, _COLUMNS, initial_indent="# ", subsequent_indent="#   ", break_long_words=False)
