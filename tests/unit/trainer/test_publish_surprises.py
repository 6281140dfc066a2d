"""Modules that do what looks harmless: each is published with the scores that it gives, or refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from storage.checkpoint import open_version
from storage.errors import ParityError, Unsupported
from storage.features import FeatureEngine, FeatureSpec, column_from_numpy
from trainer import EmbeddingBag, EmbeddingTable, publish

IDS = torch.tensor([[0, 1], [2, 3], [4, 5]])
BAGS = (torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 1]))


class Single(nn.Module):
    """Model of one embedding layer and a function over it."""

    def __init__(self, layer: nn.Module, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, *args: Tensor) -> Tensor:
        return self.function(self.layer, *args)


def column(layer: nn.Module, ids: Tensor) -> Tensor:
    return layer(ids[:, 0])


def bags(layer: nn.Module, ids: Tensor, offsets: Tensor) -> Tensor:
    return layer(ids, offsets)


def test_hooks_of_an_own_layer_are_refused_and_those_of_a_plain_one_are_part_of_the_module(tmp_path: Path) -> None:
    def doubled(layer: nn.Module, args: Any, rows: Tensor) -> Tensor:
        return rows * 2

    plain = Single(nn.Embedding(9, 4), column)
    plain.layer.register_forward_hook(doubled)
    publish(plain, IDS, tmp_path, name="m")  # compares the version's scores with those of the module
    items = nn.Embedding(9, 4)
    patched = Single(items, column)
    items.forward = lambda ids: functional.embedding(ids + 1, items.weight)  # type: ignore[method-assign,assignment]
    folder = publish(patched, IDS, tmp_path, name="n")
    assert '"op":"add"' in (folder / "features.json").read_text().replace(" ", "")
    ours = Single(EmbeddingBag(EmbeddingTable("t", 4)), bags)
    ours.layer.register_forward_hook(doubled)
    with pytest.raises(Unsupported, match=r"layer 'layer': it has hooks.*handle.remove\(\)"):
        publish(ours, BAGS, tmp_path, name="o")


@pytest.mark.parametrize("norm", [{"max_norm": 0.1}, {}])
def test_a_functional_lookup_with_max_norm_is_refused_and_leaves_the_weight(
    norm: dict[str, Any], tmp_path: Path
) -> None:
    module = Single(nn.Linear(4, 9), lambda layer, ids: functional.embedding(ids[:, 0], layer.weight, None, **norm))
    before = module.layer.weight.detach().clone()  # type: ignore[operator]
    if norm:
        with pytest.raises(Unsupported, match="'layer': max_norm changes rows"):
            publish(module, IDS, tmp_path, name="m")
    else:
        publish(module, IDS, tmp_path, name="m")
    assert torch.equal(before, module.layer.weight)  # type: ignore[arg-type]


def test_values_that_are_not_finite_are_named(tmp_path: Path) -> None:
    def masked(layer: nn.Module, ids: Tensor) -> Tensor:
        return layer(ids[:, 0]).masked_fill(torch.tensor([True, False, False, False]), -torch.inf)

    with pytest.raises(ParityError, match=r"'score': the module gives values that are not finite \(inf.*-1e9"):
        publish(Single(nn.Embedding(9, 4), masked), IDS, tmp_path, name="m")


def test_an_output_that_loses_the_batch_of_one_row_is_published(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items = nn.Embedding(9, 1)

        def forward(self, ids: Tensor) -> dict[str, Tensor]:
            rows = self.items(ids[:, 0])
            return {"a": rows, "b": rows.squeeze()}

    assert (publish(Two(), IDS, tmp_path, name="m") / "dense.pt2").exists()


def test_negative_ids_count_from_the_end_of_an_indexed_parameter(tmp_path: Path) -> None:
    def indexed(layer: nn.Module, ids: Tensor) -> Tensor:
        weight: Any = layer.weight
        return weight[ids - 1].sum(1) + weight[ids % 9].sum(1)

    module = Single(nn.Linear(4, 9), indexed)
    spec = FeatureSpec.model_validate_json((publish(module, IDS, tmp_path, name="m") / "features.json").read_text())
    ids = np.arange(-9, 12).reshape(-1, 1).repeat(2, axis=1)
    batch = FeatureEngine(spec).run({spec.inputs[0].name: column_from_numpy("INT64", ids)}, len(ids))
    first, second = (batch.ids[feature.name].values.reshape(-1, 2)[:, 0].tolist() for feature in spec.ids_features)
    wanted = torch.arange(9)[torch.arange(-9, 9)].tolist()
    assert first == [9, *wanted, 9, 9], "9 is no row: of -10, 9 and 10, for which PyTorch raises an error"
    assert second == [each % 9 for each in range(-9, 12)]
    assert [step.op for step in spec.ids_features[1].transforms] == ["modulo"]


def test_a_row_that_other_rows_decide_is_refused_although_the_sample_does_not_show_it(tmp_path: Path) -> None:
    def masked(layer: nn.Module, ids: Tensor) -> Tensor:
        return (layer(ids) * (ids[:1] != 0).float()[:, :, None]).sum(1)

    with pytest.raises(ParityError, match=r"'score' differs for some rows when other rows .* replaced; a module that"):
        publish(Single(nn.Embedding(9, 4), masked), IDS + 1, tmp_path, name="m")


def test_the_wanted_outputs_are_those_of_the_module_as_it_is(tmp_path: Path) -> None:
    def asked(layer: nn.Module, ids: Tensor) -> Tensor:
        rows = layer(ids[:, 0])
        return rows if type(layer) is nn.Embedding else -rows

    with pytest.raises(ParityError, match="the two halves do not give the module's own outputs"):
        publish(Single(nn.Embedding(9, 4), asked), IDS, tmp_path, name="m")


def below_two_is_one(layer: nn.Module, ids: Tensor) -> Tensor:
    ids[ids < 2] = 1
    return layer(ids).sum(1)


def one_more(layer: nn.Module, ids: Tensor) -> Tensor:
    ids.add_(1)
    return layer(ids).sum(1)


def doubled_rows(layer: nn.Module, ids: Tensor) -> Tensor:
    return layer(ids).mul_(2).sum(1)


def without_negative_values(layer: nn.Module, ids: Tensor, dense: Tensor) -> Tensor:
    dense[dense < 0] = 0
    return layer(ids).sum(1) + dense


@pytest.mark.parametrize("function", [below_two_is_one, one_more, doubled_rows, without_negative_values])
def test_a_module_may_write_into_its_inputs_and_rows(function: Callable[..., Tensor], tmp_path: Path) -> None:
    dense = (torch.linspace(-1, 1, 12).reshape(3, 4),) if function is without_negative_values else ()
    before = IDS.clone()
    assert publish(Single(nn.Embedding(9, 4), function), (IDS, *dense), tmp_path, name="m").exists()
    assert torch.equal(before, IDS)


def up_to_the_longest(layer: nn.Module, ids: Tensor) -> Tensor:
    return layer(ids[:, : (ids != 0).sum(1).max()]).sum(1)


def unless_empty(layer: nn.Module, ids: Tensor) -> Tensor:
    return layer(ids).sum(1) if (ids != 0).any() else layer(ids[:, 0])


def printed_length(layer: nn.Module, ids: Tensor) -> Tensor:
    str(int((ids != 0).sum()))
    return layer(ids).sum(1)


@pytest.mark.parametrize("function", [up_to_the_longest, unless_empty, printed_length])
def test_a_number_read_out_of_the_batch_is_refused_with_its_line(
    function: Callable[..., Tensor], tmp_path: Path
) -> None:
    line = inspect.getsourcelines(function)[1] + 1
    with pytest.raises(Unsupported, match=rf"number out of a tensor of the batch at {__file__}:{line} .*torch.where"):
        publish(Single(nn.Embedding(9, 4), function), IDS, tmp_path, name="m")


def sums_of_own_tensors(layer: nn.Module, ids: Tensor) -> Tensor:
    total = layer(ids).sum(1)
    for _ in range(100):  # results of lookups are freed, and their memory may be that of the next tensor
        part = torch.zeros(total.shape)
        part += layer(ids).sum(1)
        total = total + part
    return total


def test_writing_into_a_tensor_of_its_own_is_not_writing_into_rows(tmp_path: Path) -> None:
    graph = open_version(
        publish(Single(nn.Embedding(9, 4), sums_of_own_tensors), IDS, tmp_path, name="m")
    ).computation()
    assert not any("clone" in str(step) for step in graph)
