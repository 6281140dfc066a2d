"""The YAML of a draft: columns that are treated alike share an entry, and comments say what was found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from emberline.draft.label import LabelDraft
from emberline.draft.text import names, text
from emberline.draft.treatment import FeatureDraft, Treatment
from storage.data import DataOptions

_EACH = "$each"
_COLUMNS = 118
_LARGE_ROWS = 1_000_000
_SMALL_ROWS = 20_000
# For few rows small networks with dropout, which overfit later (docs/tuning.md); for many rows larger ones without.
_SMALL_NETWORKS = {
    "deepfm": "{type: deepfm, hidden: [16], dropout: 0.5}",
    "dlrm": "{type: dlrm, bottom: [32], top: [32], dropout: 0.3}",
    "wide_deep": "{type: wide_deep, hidden: [32], dropout: 0.3}",
    "dcnv2": "{type: dcnv2, cross_layers: 2, rank: 32, hidden: [32], dropout: 0.3}",
}
_NETWORKS = {
    "deepfm": "{type: deepfm, hidden: [64, 32]}",
    "dlrm": "{type: dlrm, bottom: [64], top: [64, 32]}",
    "wide_deep": "{type: wide_deep, hidden: [64, 32]}",
    "dcnv2": "{type: dcnv2, cross_layers: 2, hidden: [64, 32]}",
}
#: They read the list of ids that came before the item.
SEQUENCE_MODELS = ("din", "sasrec", "hstu")
_TIMES = {"hours": 24, "weekdays": 7}


@dataclass(frozen=True)
class Part:
    """A column of the data and what becomes of it."""

    column: str
    name: str
    treatment: Treatment
    features: tuple[FeatureDraft, ...]


@dataclass(frozen=True)
class Document:
    """All that the YAML says."""

    name: str
    label: LabelDraft
    parts: Sequence[Part]
    left_out: Sequence[tuple[str, str]]
    model: str
    #: The features of the item and of the list of earlier ones, for a model that reads the order.
    sequence: tuple[str, ...] | None
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
            *_comment(f"Label: {self.label.found}."),
            *self.label.lines,
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
            *self._model(),
            *_comment("With a small initial_accumulator, ids that are seen once learn too (docs/tuning.md)."),
            "optimizer:",
            "  dense: {type: Adam, lr: 0.001}",
            "  sparse: {type: adagrad, lr: 0.1, initial_accumulator: 1.0e-5}",
            *self._training(),
        ]
        return "\n".join(lines) + "\n"

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

    def _model(self) -> list[str]:
        if self.sequence is None:
            networks = _SMALL_NETWORKS if self.rows < _LARGE_ROWS else _NETWORKS
            return [f"model: {networks[self.model]}"]
        target, earlier = map(text, self.sequence)
        return [
            *_comment(
                f"{earlier} is read in its order, the newest id last. Where the newest is first, give newest: first to "
                "sasrec and hstu, and keep: first to truncate."
            ),
            f"model: {{type: {self.model}, target: {target}, sequence: {earlier}, hidden: [64, 32]}}",
        ]

    def _dim(self) -> int:
        dim = 4 if self.rows < _SMALL_ROWS else 8 if self.rows < _LARGE_ROWS else 16
        # The first value of a row is its linear weight.
        return dim + 1 if self.model in ("deepfm", "wide_deep") else dim

    def _training(self) -> list[str]:
        batch = 128 if self.rows < _SMALL_ROWS else 512 if self.rows < _LARGE_ROWS else 2048
        epochs = 5 if self.rows < _SMALL_ROWS else 2 if self.rows < _LARGE_ROWS else 1
        return [
            *_comment("With --valid, `early_stopping: {patience: 1}` in `training` keeps the best of more epochs."),
            f"training: {{batch_size: {batch}, epochs: {epochs}, seed: 1}}",
        ]


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
