"""The model zoo: shapes, refusals, and data sets without dense features or with one feature."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from storage import open_version
from storage.checkpoint.fused.lower import lower
from storage.errors import ConfigError
from storage.features import FeatureEngine, column_from_lists, column_from_numpy
from trainer import publish
from trainer.config import TrainConfig, parse_text
from trainer.data import BatchMaker, DataRows, Wanted, to_inputs
from trainer.models import MODELS, DcnV2, RankingModel, build_model, build_tables

NO_DENSE = """
model_name: m
label: y
inputs: [{name: a, dtype: INT64}, {name: b, dtype: INT64}]
features:
  - {name: a, inputs: [a], output: ids, table: t}
  - {name: b, inputs: [b], output: ids, table: t}
tables: [{name: t, dim: 4}]
model: MODEL
"""


@pytest.mark.parametrize("model", [kind for kind in MODELS if kind != "two_tower"])  # in test_two_tower.py
@pytest.mark.parametrize("rows", [1, 7])
def test_a_model_gives_one_probability_a_row(
    clicks: Path, config_of: Callable[..., TrainConfig], model: str, rows: int
) -> None:
    config = config_of(model)
    tables = build_tables(config)
    built = build_model(config, tables)
    data = DataRows.open(clicks, Wanted(config.inputs, config.targets.numbers)).range(0, rows).read()
    score = built(BatchMaker(config.spec, config.targets).inputs(data))["score"]
    assert score.shape == (rows, 1)
    assert bool(((score > 0) & (score < 1)).all())
    assert tables["users"].size() > 0


@pytest.mark.parametrize("model", [kind for kind in MODELS if kind != "two_tower"])
def test_no_rows_teach_nothing(clicks: Path, config_of: Callable[..., TrainConfig], model: str) -> None:
    """A rank without a row of a last batch learns nothing of it."""
    config = config_of(model)
    tables = build_tables(config)
    built = build_model(config, tables)
    data = DataRows.open(clicks, Wanted(config.inputs, config.targets.numbers)).range(0, 1).read()
    loss, logits = built.learn(BatchMaker(config.spec, config.targets).batch(data.slice(0, 0)), config.targets)
    (loss * 0.0).backward()
    assert len(logits) == 0
    for weight in built.parameters():
        assert weight.grad is None or not weight.grad.any()
    assert all(table.size() == 0 for table in tables.values())


@pytest.mark.parametrize(
    "model", ["{type: deepfm, hidden: []}", "{type: dlrm, bottom: [], top: [3]}", "{type: wide_deep}", "{type: dcnv2}"]
)
def test_a_data_set_without_dense_features_is_trained_and_published(tmp_path: Path, model: str) -> None:
    config = parse_text(NO_DENSE.replace("MODEL", model))
    built = build_model(config, build_tables(config))
    columns = {name: column_from_numpy("INT64", np.arange(5)) for name in "ab"}
    built(to_inputs(FeatureEngine(config.spec).run(columns, 5)))["score"].sum().backward()
    folder = publish(built, columns, tmp_path, name="m", spec=config.spec)
    module = open_version(folder).graph().program.module
    assert lower(module).steps.steps, "the server computes it by fused steps"


def test_golden_requests_keep_to_the_length_of_a_list_and_the_size_of_a_cross(tmp_path: Path) -> None:
    text = NO_DENSE.replace("MODEL", "{type: dlrm, top: [3]}")
    text = text.replace("{name: b, dtype: INT64}", "{name: b, dtype: INT64, kind: list, max_length: 2}")
    config = parse_text(text.replace("inputs: [b]", "inputs: [a, b], transforms: [{op: cross, max: 2}]"))
    built = build_model(config, build_tables(config))
    columns = {
        "a": column_from_numpy("INT64", np.arange(4)),
        "b": column_from_lists("INT64", [[1, 2], [3], [], [4, 5]]),
    }
    built(to_inputs(FeatureEngine(config.spec).run(columns, 4)))
    golden = open_version(publish(built, columns, tmp_path, name="m", spec=config.spec)).golden()
    offsets = golden.columns["b"].offsets
    assert offsets is not None
    lengths = np.diff(offsets)
    assert set(lengths.tolist()) == {0, 1, 2}


def test_a_dlrm_of_one_feature_still_sees_it(tmp_path: Path) -> None:
    text = NO_DENSE.replace("MODEL", "{type: dlrm}").replace(", {name: b, dtype: INT64}", "")
    config = parse_text("\n".join(line for line in text.splitlines() if "name: b" not in line))
    built = build_model(config, build_tables(config))
    columns = {"a": column_from_numpy("INT64", np.arange(5))}
    scores = built(to_inputs(FeatureEngine(config.spec).run(columns, 5)))["score"]
    assert len(scores.unique()) == 5


def looked_up(model: RankingModel, rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """Lets the lookups of a model find these rows; returns inputs for it."""
    for layer, name in zip(model.features.embeddings.layers, rows, strict=True):  # type: ignore[union-attr]
        layer.forward = lambda values, offsets, weights=None, name=name: rows[name]
    return {f"{name}.{part}": torch.zeros(0, dtype=torch.int64) for name in rows for part in ("values", "offsets")}


def test_deepfm_is_the_mean_over_fields_of_the_sum_over_pairs_at_first() -> None:
    config = parse_text(NO_DENSE.replace("MODEL", "{type: deepfm, hidden: []}"))
    built = build_model(config, build_tables(config))
    rows = {name: torch.randn(3, 4) for name in "ab"}
    given = looked_up(built, rows)
    a, b = rows["a"], rows["b"]
    deep = built.deep(torch.cat([a[:, 1:], b[:, 1:]], dim=1))  # type: ignore[operator]
    pairs = (a[:, 1:] * b[:, 1:]).sum(1, keepdim=True)
    expected = a[:, :1] + b[:, :1] + pairs / 2 + deep
    torch.testing.assert_close(built.logits(given), expected)


def test_a_row_of_one_value_is_a_linear_weight_alone() -> None:
    text = NO_DENSE.replace("MODEL", "{type: wide_deep, hidden: [3]}")
    text = text.replace(
        "{name: b, inputs: [b], output: ids, table: t}", "{name: b, inputs: [b], output: ids, table: u}"
    )
    config = parse_text(text.replace("dim: 4}", "dim: 4}, {name: u, dim: 1}"))
    built = build_model(config, build_tables(config))
    a, b = torch.randn(5, 4), torch.randn(5, 1)
    given = looked_up(built, {"a": a, "b": b})
    torch.testing.assert_close(built.logits(given), a[:, :1] + b + built.deep(a[:, 1:]))  # type: ignore[operator]


@pytest.mark.parametrize("options", ["", ", rank: 3", ", structure: stacked", ", structure: stacked, hidden: []"])
def test_a_cross_layer_multiplies_the_inputs_with_what_the_one_before_made(options: str) -> None:
    config = parse_text(NO_DENSE.replace("MODEL", f"{{type: dcnv2, cross_layers: 2{options}}}"))
    built = build_model(config, build_tables(config))
    a, b = torch.randn(5, 4), torch.randn(5, 4)
    x = torch.cat([a, b], dim=1)
    assert isinstance(built, DcnV2)
    once = x * built.cross[0](x) + x
    twice = x * built.cross[1](once) + once
    deep = [] if built.deep is None else [built.deep(x)]
    assert len(deep) == ("stacked" not in options)
    torch.testing.assert_close(
        built.logits(looked_up(built, {"a": a, "b": b})), built.top(torch.cat([twice, *deep], 1))
    )
    assert (sum(weight.numel() for weight in built.cross.parameters()) == 2 * (2 * 3 * 8 + 8)) == ("rank" in options)


@pytest.mark.parametrize("options", ["", ", hidden: []"])
def test_what_dcnv2_reads_of_a_feature_begins_as_of_one_feature_alone(options: str) -> None:
    text = NO_DENSE.replace("MODEL", f"{{type: dcnv2{options}}}").replace("dim: 4", "dim: 16")
    text = text.replace("inputs: [b], output: ids, table: t", "inputs: [b], output: ids, table: u")
    config = parse_text(text.replace("tables: [", "tables: [{name: u, dim: 64}, "))
    built = build_model(config, build_tables(config))
    assert isinstance(built, DcnV2)
    first = built.top[0]
    assert isinstance(first, torch.nn.Linear)
    weight = first.weight.detach()[0].abs()
    assert 0.15 < weight[:16].max() <= 0.25, "1 / sqrt(16)"
    assert weight[16:80].max() <= 0.125 < 1.5 * weight[16:80].max(), "1 / sqrt(64)"


SEQUENCE = """
model_name: m
label: y
inputs: [{name: a, dtype: INT64}, {name: b, dtype: INT64, kind: list}]
features:
  - {name: a, inputs: [a], output: ids, table: t}
  - {name: b, inputs: [b], output: ids, table: t, pooling: none, length: 5}
tables: [{name: t, dim: 4}]
model: {type: MODEL, target: a, sequence: b, heads: 2, hidden: [6]OPTIONS}
"""


def scored(model: RankingModel, config: TrainConfig, lists: list[list[int]]) -> Tensor:
    """Returns the log-odds of the same target after each of these sequences."""
    columns = {
        "a": column_from_numpy("INT64", np.full(len(lists), 9)),
        "b": column_from_lists("INT64", lists),
    }
    inputs = to_inputs(FeatureEngine(config.spec).run(columns, len(lists)))
    model.train()(inputs)  # every id gets its row
    with torch.inference_mode():
        return model.eval().logits(inputs)


@pytest.mark.parametrize("model", ["sasrec", "hstu"])
def test_a_sequence_reads_the_same_from_either_end_and_its_order_counts(model: str) -> None:
    lists = [[1, 2, 3], [], [7], [1, 2, 3, 4, 5], [3, 2, 1]]
    found = []
    for newest, turned in (("last", lists), ("first", [each[::-1] for each in lists])):
        config = parse_text(SEQUENCE.replace("MODEL", model).replace("OPTIONS", f", newest: {newest}"))
        torch.manual_seed(3)
        found.append(scored(build_model(config, build_tables(config)), config, turned))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)
    assert len(found[0].unique()) == len(lists)


@pytest.mark.parametrize("model", ["sasrec", "hstu"])
def test_a_state_depends_on_older_items_only_and_padding_on_nothing(model: str) -> None:
    config = parse_text(SEQUENCE.replace("MODEL", model).replace("OPTIONS", ", newest: first, blocks: 3"))
    torch.manual_seed(3)
    built = build_model(config, build_tables(config)).eval()
    tokens = 5 if model == "sasrec" else 6
    given = torch.tensor([[True] * (tokens - 1) + [False]])
    states = torch.randn(1, tokens, 4)
    for block in built.blocks:  # type: ignore[union-attr]
        before = block(states, given)[:, :-1]
        newer, padding = states.clone(), states.clone()
        newer[:, 1] = torch.randn(4)
        padding[:, -1] = torch.randn(4)
        torch.testing.assert_close(block(padding, given)[:, :-1], before)
        after = block(newer, given)[:, :-1]
        torch.testing.assert_close(after[:, 2:], before[:, 2:])
        assert bool(((after[:, :2] - before[:, :2]).abs().amax(dim=2) > 1e-6).all())


@pytest.mark.parametrize(
    ("model", "old", "new", "words"),
    [
        ("{type: deepfm}", "dim: 4", "dim: 1", "dim 2 or more"),
        (
            "{type: dlrm}",
            "output: ids, table: t}\ntables",
            "output: ids, table: t, pooling: none, length: 3}\ntables",
            "b",
        ),
        ("{type: din, target: a, sequence: c}", "dim: 4", "dim: 4", "expected an ids feature with pooling none"),
        ("{type: hstu, target: a, sequence: c}", "dim: 4", "dim: 4", "hstu: sequence is 'c', expected an ids feature"),
        (
            "{type: sasrec, target: a, sequence: b, heads: 3}",
            "output: ids, table: t}\ntables",
            "output: ids, table: t, pooling: none, length: 3}\ntables",
            "sasrec: 3 heads do not divide 4 values",
        ),
        ("{type: din, target: c, sequence: b}", "dim: 4", "dim: 4", "expected an ids feature with pooling sum"),
        (
            "{type: dlrm}",
            "table: t}\ntables: [",
            "table: u}\ntables: [{name: u, dim: 3}, ",
            r"one dim for all tables, got \[3, 4\]",
        ),
    ],
)
def test_features_that_do_not_suit_the_model_are_refused(model: str, old: str, new: str, words: str) -> None:
    text = NO_DENSE.replace("MODEL", model)
    assert old in text
    config = parse_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=words):
        build_model(config, build_tables(config))
