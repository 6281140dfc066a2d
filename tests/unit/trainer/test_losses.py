"""Losses of tasks against plain loops, weights of tasks and rows, and labels that do not fit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.nn import functional

from storage.errors import ConfigError, InvalidInput
from trainer.config import TrainConfig, parse_text
from trainer.data import Batch
from trainer.data.targets import read_groups, read_labels, read_weights
from trainer.losses import batch_loss, joint_logits, listwise_loss, pairwise_loss
from trainer.settings import check_same_model, settings_of
from trainer.task_config import Targets, TaskConfig

B = 40
TEXT = """
model_name: shop
LEARNED
inputs: [{name: user, dtype: INT64}]
features: [{name: user, inputs: [user], output: ids, table: users}]
tables: [{name: users, dim: 4}]
model: {type: deepfm, hidden: [8]}
"""
TWO = "tasks: [{name: like, label: liked}, {name: stars, label: stars, loss: mean_squared_error}]"


def config_of(learned: str) -> TrainConfig:
    return parse_text(TEXT.replace("LEARNED", learned))


def batch_of(table: pa.Table, targets: Targets) -> Batch:
    weights, groups = read_weights(table, targets), read_groups(table, targets)
    return Batch({}, read_labels(table, targets), table.num_rows, {}, None, weights, groups)


@pytest.fixture
def table() -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "liked": rng.integers(0, 2, B),
            "stars": rng.integers(0, 6, B),
            "weight": rng.integers(0, 4, B) / 2.0,
            "user": [f"user {i}" for i in rng.integers(0, 8, B)],
        }
    )


@pytest.fixture
def heads() -> torch.Tensor:
    return torch.randn((B, 8), generator=torch.Generator().manual_seed(0)).requires_grad_()


def test_the_loss_is_that_of_each_task_by_its_weight(table: pa.Table, heads: torch.Tensor) -> None:
    targets = config_of(
        "tasks: [{name: like, label: liked}, {name: stars, label: stars, loss: mean_squared_error, weight: 0.5},"
        " {name: kind, label: stars, loss: softmax_cross_entropy, classes: 6, weight: 2}]"
    ).targets
    assert targets.width == 8
    liked, stars = (torch.tensor(table[name].to_pylist()) for name in ("liked", "stars"))
    expected = (
        functional.binary_cross_entropy_with_logits(heads[:, 0], liked.float())
        + 0.5 * functional.mse_loss(heads[:, 1], stars.float())
        + 2 * functional.cross_entropy(heads[:, 2:], stars)
    )
    assert batch_loss(heads, batch_of(table, targets), targets).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("task", ["", "loss: mean_squared_error", "loss: softmax_cross_entropy, classes: 2"])
def test_a_row_of_weight_two_counts_as_the_row_twice(table: pa.Table, heads: torch.Tensor, task: str) -> None:
    targets = config_of("sample_weight: weight\ntasks: [{label: liked, " + task + "}]").targets
    times = np.asarray(table["weight"].to_numpy() * 2).astype(int)
    again = torch.from_numpy(np.repeat(np.arange(B), times))
    head = heads[:, : targets.width]
    weighted = batch_loss(head, batch_of(table, targets), targets)
    unweighted = Targets(targets.tasks, None, targets.fields)
    repeated = batch_loss(head[again], batch_of(table.take(again.numpy()), unweighted), unweighted)
    assert (weighted * B * 2).item() == pytest.approx((repeated * len(again)).item(), rel=1e-5)


def test_one_binary_task_has_the_bits_of_the_plain_loss(table: pa.Table, heads: torch.Tensor) -> None:
    targets = config_of("label: liked").targets
    batch = batch_of(table, targets)
    plain = functional.binary_cross_entropy_with_logits(heads[:, :1], batch.labels)
    assert batch_loss(heads[:, :1], batch, targets).item() == plain.item()


def test_pairs_and_lists_of_a_group_are_those_of_plain_loops(table: pa.Table, heads: torch.Tensor) -> None:
    scores, labels = heads.detach()[:, 0], torch.tensor(table["stars"].to_pylist(), dtype=torch.float32)
    users = table["user"].to_pylist()
    groups = np.unique(users, return_inverse=True)[1]
    pairs = [
        math.log1p(math.exp(float(scores[j] - scores[i])))
        for i in range(B)
        for j in range(B)
        if users[i] == users[j] and labels[i] > labels[j]
    ]
    assert pairwise_loss(scores, labels, groups).item() == pytest.approx(np.mean(pairs), rel=1e-5)
    lists = []
    for user in set(users):
        rows = [i for i in range(B) if users[i] == user]
        if labels[rows].sum() > 0:
            shares = labels[rows] / labels[rows].sum()
            lists.append(functional.cross_entropy(scores[rows].unsqueeze(0), shares.unsqueeze(0)).item())
    assert listwise_loss(scores, labels, groups).item() == pytest.approx(np.mean(lists), rel=1e-5)
    for loss in (pairwise_loss, listwise_loss):
        given = scores.double().requires_grad_()
        assert torch.autograd.gradcheck(lambda each, loss=loss: loss(each, labels.double(), groups), given)


@pytest.mark.parametrize(
    "task",
    [
        "label: liked",
        "label: stars, loss: mean_squared_error",
        "label: stars, loss: softmax_cross_entropy, classes: 6",
        "label: stars, loss: pairwise, group: user",
        "label: stars, loss: listwise, group: user",
        "label: {column: stars, at_least: 4}",
    ],
)
@pytest.mark.parametrize("weighted", ["", "sample_weight: weight\n"])
def test_a_task_learns_from_the_rows_with_its_label_alone(
    table: pa.Table, heads: torch.Tensor, task: str, weighted: str
) -> None:
    missing = np.random.default_rng(1).random(B) < 0.4
    column = "liked" if "liked" in task else "stars"
    values = pa.array(table[column].to_pylist(), mask=missing)
    holes = table.set_column(table.column_names.index(column), column, values)
    targets = config_of(weighted + "tasks: [{" + task + ", missing_label: ignore}]").targets
    some = batch_loss(heads[:, : targets.width], batch_of(holes, targets), targets)
    known = np.flatnonzero(~missing)
    alone = batch_loss(heads[known, : targets.width], batch_of(table.take(known), targets), targets)
    assert some.item() == alone.item()
    some.backward()
    assert heads.grad is not None
    assert not heads.grad[missing].any()
    assert heads.grad[known].any()
    none = holes.slice(int(np.flatnonzero(missing)[0]), 1)
    loss = batch_loss(heads[:1, : targets.width], batch_of(none, targets), targets)
    assert loss.item() == 0.0
    with pytest.raises(InvalidInput, match=r"holds nulls; .*missing_label: ignore"):
        read_labels(holes, config_of("tasks: [{" + task + "}]").targets)


def test_a_given_task_is_learned_as_the_probability_that_all_happen(table: pa.Table, heads: torch.Tensor) -> None:
    text = (
        "{name: click, label: liked}, {name: order, label: bought, given: click},"
        " {name: again, label: twice, given: order, weight: 2}"
    )
    targets = config_of("tasks: [" + text + "]").targets
    rng = np.random.default_rng(3)
    bought = rng.integers(0, 2, B)
    table = table.append_column("bought", pa.array(bought)).append_column(
        "twice", pa.array(bought & rng.integers(0, 2))
    )
    logits = 4 * heads[:, :3]
    joint = joint_logits(logits, targets.tasks)
    product = torch.cumprod(torch.sigmoid(logits.double()), dim=1)
    assert torch.allclose(torch.sigmoid(joint), product.float(), atol=1e-6)
    labels = batch_of(table, targets).labels
    plain = functional.binary_cross_entropy(product, labels.double(), reduction="none").mean(dim=0)
    expected = (plain * torch.tensor([1.0, 1.0, 2.0])).sum()
    assert batch_loss(joint, batch_of(table, targets), targets).item() == pytest.approx(expected.item(), rel=1e-5)
    # Far from where a product would be 0 or 1, values and gradients are finite.
    far = torch.tensor([[200.0, 200.0, -200.0], [-200.0, 200.0, 200.0]], requires_grad=True)
    loss = batch_loss(joint_logits(far, targets.tasks), batch_of(table.slice(0, 2), targets), targets)
    loss.backward()
    assert far.grad is not None
    assert loss.isfinite()
    assert far.grad.isfinite().all()


def test_nan_counts_as_no_label_where_a_task_ignores_these() -> None:
    targets = config_of("tasks: [{label: a, missing_label: ignore}]").targets
    found = read_labels(pa.table({"a": pa.array([1.0, float("nan"), None, 0.0])}), targets)
    assert found.isnan().squeeze(1).tolist() == [False, True, True, False]
    with pytest.raises(InvalidInput, match=r"holds 2\.0, expected 0 and 1"):
        read_labels(pa.table({"a": pa.array([1.0, None, 2.0])}), targets)


@pytest.mark.parametrize("loss", [pairwise_loss, listwise_loss])
def test_a_batch_without_anything_to_rank_has_no_loss_and_no_gradient(heads: torch.Tensor, loss: Any) -> None:
    value = loss(heads[:, 0], torch.zeros(B), np.zeros(B, np.int64))
    value.backward()
    assert value.item() == 0.0
    assert heads.grad is not None
    assert not heads.grad.any()


def test_more_pairs_than_memory_has_room_for_are_refused() -> None:
    with pytest.raises(InvalidInput, match="pairs of rows of one group"):
        pairwise_loss(torch.zeros(10_000), torch.ones(10_000), np.zeros(10_000, np.int64))


@pytest.mark.parametrize(
    ("task", "values", "words"),
    [
        ("", [0, 2], "task 'two': the label column 'b' holds 2, expected 0 and 1"),
        ("", [0, None], "task 'two': the label column 'b' holds nulls"),
        ("loss: mean_squared_error", [0.5, float("nan")], "holds nan, expected finite numbers"),
        ("loss: mean_squared_error", [0.5, 1e39], "holds 1e\\+39, expected finite numbers"),
        ("loss: softmax_cross_entropy, classes: 3", [0, 3], "holds 3, expected whole numbers from 0 to 2"),
        ("loss: softmax_cross_entropy, classes: 3", [0.5, 1.0], "holds 0.5, expected whole numbers"),
        ("loss: pairwise, group: user", [0, -1], "holds -1, expected numbers of 0 or more"),
    ],
)
def test_a_label_that_does_not_fit_its_task_is_refused_by_name(task: str, values: list[Any], words: str) -> None:
    targets = config_of("tasks: [{name: one, label: a}, {name: two, label: b, " + task + "}]").targets
    with pytest.raises(InvalidInput, match=words) as caught:
        read_labels(pa.table({"a": [0, 1], "b": pa.array(values)}), targets)
    assert caught.value.field == "b"


def test_weights_and_groups_that_do_not_fit_are_refused_by_name() -> None:
    targets = config_of("sample_weight: w\ntasks: [{label: a, loss: listwise, group: user}]").targets
    with pytest.raises(InvalidInput, match=r"'w' of sample_weight holds -1.0, expected numbers of 0 or more"):
        read_weights(pa.table({"w": [1.0, -1.0]}), targets)
    with pytest.raises(InvalidInput, match=r"'user' of tasks.0.group holds nulls"):
        read_groups(pa.table({"user": ["a", None]}), targets)


@pytest.mark.parametrize(
    ("learned", "words"),
    [
        ("", "label: missing; name the column of 0 and 1 that is learned, or list `tasks`"),
        ("label: a\ntasks: [{label: b}]", "label: is the short form of one binary task; leave it out"),
        ("tasks: [{label: a}, {label: b}]", "tasks: expected a name of its own for each"),
        ("tasks: [{label: a, los: pairwise}]", "tasks.0.los: unknown key; did you mean 'loss'?"),
        ("tasks: [{label: a, loss: pairwise}]", "tasks.0: pairwise needs `group`"),
        ("tasks: [{label: a, classes: 3}]", "tasks.0: binary_cross_entropy has no `classes`"),
        ("tasks: [{label: a, loss: softmax_cross_entropy}]", "tasks.0: softmax_cross_entropy needs `classes`"),
        ("tasks: [{label: a, name: a b}]", "tasks.0.name: expected letters, digits"),
        ("tasks: [{label: a, weight: 0}]", "tasks.0.weight: "),
        ("tasks: [{label: a, metrics: [auk]}]", "'auk' is no metric of binary_cross_entropy; did you mean 'auc'?"),
        ("tasks: [{label: a, metrics: [gauc]}]", "'gauc' needs `group`"),
        ("tasks: [{label: a, group: u, metrics: [ndcg]}]", "metrics: 'ndcg', expected ndcg@10"),
        ("tasks: [{label: a, metrics: [auc@3]}]", "metrics: 'auc@3', expected auc"),
        (
            "tasks: [{label: a}, {name: b, label: b, given: scor}]",
            "tasks.1.given: 'scor' is no earlier binary task; did",
        ),
        ("tasks: [{label: a, given: b}, {name: b, label: b}]", "tasks.0.given: 'b' is no earlier binary task"),
        (
            "tasks: [{label: a}, {name: b, label: b, loss: mean_squared_error, given: score}]",
            "tasks.1: given: is for bi",
        ),
        (
            "tasks: [{name: b_given_c, label: a}, {name: c, label: a}, {name: b, label: b, given: c}]",
            "output 'b_given_c'",
        ),
        ("tasks: [{label: a, loss: mean_squared_error, metrics: [auc]}]", "'auc' is no metric of mean_squared_error"),
    ],
)
def test_a_task_that_cannot_be_is_refused_by_its_path(learned: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(learned)
    assert words in str(caught.value)


def test_what_heads_compute_stays_and_what_is_measured_may_change() -> None:
    trained = settings_of(config_of(TWO))
    now = config_of(TWO.replace("label: liked", "label: liked, weight: 2, metrics: [auc]"))
    check_same_model(trained, now, Path("run"))
    for other, words in [
        (TWO.replace(", loss: mean_squared_error", ""), "tasks.stars.loss was mean_squared_error"),
        ("tasks: [{name: stars, label: stars, loss: mean_squared_error}, {name: like, label: liked}]", "place was 0"),
        ("label: liked", "tasks.like was removed"),
    ]:
        with pytest.raises(ConfigError, match=words):
            check_same_model(trained, config_of(other), Path("run"))


def test_the_short_form_is_one_binary_task() -> None:
    assert config_of("label: liked").targets.tasks == (TaskConfig(name="score", label="liked"),)
