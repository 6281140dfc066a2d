"""Every module that cannot be cut is refused by name, before anything is written."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from storage.errors import ConfigError, EmberlineError, InvalidInput, ParityError, Unsupported
from storage.features import FeatureSpec, column_from_numpy
from trainer import EmbeddingBag, EmbeddingTable, publish

IDS = torch.tensor([[0, 1], [2, 3], [4, 5]])
BAGS = (torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 1]))


class Single(nn.Module):
    """Model of one embedding layer and a function over it."""

    def __init__(self, layer: nn.Module, forward: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layer, self.function = layer, forward

    def forward(self, ids: Tensor, offsets: Tensor | None = None) -> Tensor:
        return self.function(self.layer, ids) if offsets is None else self.function(self.layer, ids, offsets)


def column(layer: nn.Module, ids: Tensor) -> Tensor:
    return layer(ids[:, 0])


def bags(layer: nn.Module, ids: Tensor, offsets: Tensor) -> Tensor:
    return layer(ids, offsets)


def drawn(layer: nn.Module, ids: Tensor) -> Tensor:
    rows = layer(ids[:, 0])
    return rows + torch.rand(rows.shape[0], 4)


def dependent(layer: nn.Module, ids: Tensor) -> Tensor:
    rows = layer(ids[:, 0])
    return rows if float(rows.sum()) > -1e9 else -rows


def odd(layer: nn.Module, ids: Tensor) -> Any:
    return "yes" if layer(ids[:, 0]) is None else 3


REFUSALS: dict[str, tuple[nn.Module, Callable[..., Tensor], tuple[Tensor, ...], str]] = {
    "max_norm": (nn.Embedding(9, 4, max_norm=1.0), column, (IDS,), "layer 'layer'.*max_norm"),
    "mode max of any length": (nn.EmbeddingBag(9, 4, mode="max"), bags, BAGS, "layer 'layer'.*'max'.*padded to one"),
    "mean with padding of any length": (
        nn.EmbeddingBag(9, 4, mode="mean", padding_idx=0),
        bags,
        BAGS,
        "'mean' with padding_idx.*padded to one",
    ),
    "float64 rows": (nn.Embedding(9, 4).double(), column, (IDS,), "float64"),
    "computed weights of any length": (
        nn.EmbeddingBag(9, 4, mode="sum"),
        lambda layer, ids, offsets: layer(ids, offsets, torch.ones(len(ids))),
        BAGS,
        "weights are computed inside forward.*as float32",
    ),
    "weights that are no tensor": (
        nn.EmbeddingBag(9, 4, mode="sum"),
        lambda layer, ids, offsets: layer(ids, offsets, [1.0]),
        BAGS,
        "per_sample_weights is no tensor but list",
    ),
    "ids out of scores": (
        nn.Embedding(1 << 20, 4),
        lambda layer, ids: layer(layer(ids).sum(2).argmax(1)),
        (IDS,),
        r"'layer'.*computed .*aten.argmax.*test_publish_refusals.py:[0-9]+.*before everything.*up to 4 MiB.*it has 16",
    ),
    "ids of two inputs": (
        nn.Embedding(1 << 20, 4),
        lambda layer, ids: layer(ids[:, 0] * 3 + ids[:, 1]),
        (IDS,),
        r"computed inside forward\(\) by aten.add",
    ),
    "ids of another row": (
        nn.Embedding(9, 4),
        lambda layer, ids: layer(ids.roll(1, 0)).sum(1),
        (IDS,),
        "'layer'.*not row by row.*row i of the batch alone",
    ),
    "comparisons as ids": (
        nn.Embedding(1 << 20, 4),
        lambda layer, ids: layer((ids[:, 0] > 2).long()),
        (IDS,),
        "'layer'.*comparison of 'ids'",
    ),
    "computed offsets": (
        nn.EmbeddingBag(9, 4, mode="sum"),
        lambda layer, ids, counts: layer(ids, counts.cumsum(0) - counts),
        (torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 1])),
        "offsets are computed.*aten.sub",
    ),
    "integers of bags": (
        nn.EmbeddingBag(9, 4, mode="sum"),
        lambda layer, ids, offsets: layer(ids, offsets) * (ids != 0).sum(),
        BAGS,
        "'ids' is used by aten.sum.*bags of any length",
    ),
    "int16 in the graph": (
        nn.Embedding(9, 4),
        lambda layer, ids, other: layer(ids[:, 0]) * (other > 0).unsqueeze(1),
        (IDS, torch.tensor([1, 0, 1], dtype=torch.int16)),
        "'offsets' is torch.int16.*use int64, int32 or bool",
    ),
    "no layer": (nn.Linear(2, 4), lambda layer, ids: layer(ids), (IDS.float(),), "no embedding layer"),
    "max_norm of the functional form": (
        nn.Embedding(9, 4),
        lambda layer, ids: functional.embedding_bag(ids, layer.weight, max_norm=1.0),
        (IDS,),
        "max_norm",
    ),
    "the data of packed sequences": (
        nn.Embedding(9, 4),
        lambda layer, ids: pack_padded_sequence(layer(ids), torch.tensor([2, 1, 2]), True, False).data,
        (IDS,),
        r"uses a packed sequence otherwise than by a layer.*and pad_packed_sequence",
    ),
    "len() of the batch": (
        nn.Embedding(9, 4),
        lambda layer, ids: layer(ids)[torch.arange(len(ids)), ids[:, 1] % 2],
        (IDS,),
        r"len\(x\).*test_publish_refusals.py:[0-9]+, makes its size a constant: write x.shape",
    ),
    "other rows of the batch": (
        nn.Embedding(9, 4),
        lambda layer, ids: layer(ids[:, 0]) - layer(ids[:, 0]).mean(0),
        (IDS,),
        "other rows of the sample are replaced",
    ),
    "values decide": (nn.Embedding(9, 4), dependent, (IDS,), "torch.export"),
    "a fixed batch": (nn.Embedding(9, 4), lambda layer, ids: layer(ids[:, 0]).view(3, 4), (IDS,), "batch"),
    "no batch in the output": (nn.Embedding(9, 4), lambda layer, ids: layer(ids[:, 0]).sum(), (IDS,), "0 rows"),
    "half precision out": (nn.Embedding(9, 4), lambda layer, ids: layer(ids[:, 0]).half(), (IDS,), "float16"),
    "random numbers": (nn.Embedding(9, 4), drawn, (IDS,), "differ"),
    "one row": (nn.Embedding(9, 4), column, (IDS[:1],), "two rows"),
    "an odd answer": (nn.Embedding(9, 4), odd, (IDS,), "int"),
}


@pytest.mark.parametrize("case", sorted(REFUSALS))
def test_a_module_that_cannot_be_cut_is_refused(case: str, tmp_path: Path) -> None:
    layer, function, sample, words = REFUSALS[case]
    module = Single(layer, function)
    with pytest.raises((Unsupported, ParityError, InvalidInput), match=words):
        publish(module, sample, tmp_path, name="m")
    assert not list(tmp_path.rglob("manifest.json"))
    assert module.layer is layer
    assert module.training


def test_float64_dense_features_are_refused_by_name(tmp_path: Path) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Embedding(9, 4)

        def forward(self, ids: Tensor, price: Tensor) -> Tensor:
            return self.layer(ids[:, 0]) * price

    with pytest.raises(Unsupported, match=r"'price' is torch\.float64"):
        publish(Both(), (IDS, torch.ones(3, 1, dtype=torch.float64)), tmp_path, name="m")
    with pytest.raises(Unsupported, match="'price' has the shape"):
        publish(Both(), (IDS, torch.ones(1, 4)), tmp_path, name="m")


def spec_of(**feature: object) -> FeatureSpec:
    entry = {"name": "a", "inputs": ["a"], "output": "ids", "table": "t", **feature}
    return FeatureSpec.parse({"inputs": [{"name": "a", "dtype": "INT64"}], "features": [entry]})


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        ({"table": "other"}, "reads the table 't', but the spec says 'other'"),
        ({"pooling": "mean"}, "gives pooling sum"),
        ({"pooling": "none", "length": 3}, "gives pooling sum"),
    ],
)
def test_a_spec_that_says_otherwise_than_the_module_is_refused(
    feature: dict[str, object], words: str, tmp_path: Path
) -> None:
    class Ours(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = EmbeddingBag(EmbeddingTable("t", 4))

        def forward(self, inputs: dict[str, Tensor]) -> Tensor:
            return self.layer(inputs["a.values"], inputs["a.offsets"])

    columns = {"a": column_from_numpy("INT64", np.arange(4))}
    with pytest.raises(ConfigError, match=words):
        publish(Ours(), columns, tmp_path, name="m", spec=spec_of(**feature))
    with pytest.raises(InvalidInput, match="Column"):
        publish(Ours(), {"a": IDS}, tmp_path, name="m", spec=spec_of())


def test_two_tables_of_one_name_are_refused(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (EmbeddingBag(EmbeddingTable("t", 4)) for _ in range(2))

        def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
            return self.a(ids, offsets) + self.b(ids, offsets)

    with pytest.raises(ConfigError, match="another table is called 't'"):
        publish(Twice(), (torch.tensor([1, 2]), torch.tensor([0, 1, 2])), tmp_path, name="m")


def test_layers_that_share_a_weight_but_not_its_padding_are_refused(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.single = nn.EmbeddingBag(9, 4, mode="sum", padding_idx=0), nn.Embedding(9, 4)
            self.single.weight = self.bag.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.bag(ids) + self.single(ids[:, 0])

    with pytest.raises(EmberlineError, match="share a table, but not their padding_idx"):
        publish(Tied(), IDS, tmp_path, name="m")


class Frequencies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items, self.head = nn.Embedding(9, 4), nn.Linear(3, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.fft.rfft(self.items(ids)[:, 0]).abs())


class Rounding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(9, 4)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.items(ids[:, 0])
        return rows + int(rows.sum() * 0)


def test_an_operator_that_graphs_may_not_use_is_named_with_its_place(tmp_path: Path) -> None:
    line = inspect.getsourcelines(Frequencies.forward)[1] + 1
    with pytest.raises(Unsupported) as refusal:
        publish(Frequencies(), IDS.repeat(3, 1), tmp_path, name="m")
    assert str(refusal.value) == (
        f"the module uses the operator 'aten._fft_r2c.default' at {__file__}:{line}, which published graphs may not "
        "use; write that part with accepted operators (docs/format.md says which they are)"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_failing_export_says_where_and_prints_no_graph(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    line = inspect.getsourcelines(Rounding.forward)[1] + 2
    with pytest.raises(Unsupported) as refusal:
        publish(Rounding(), IDS.repeat(3, 1), tmp_path, name="m")
    message = str(refusal.value)
    assert f"at {__file__}:{line} (return rows + int(rows.sum() * 0)). Its graph has to be" in message
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_user_input_that_there_is_not_is_refused_with_the_inputs(tmp_path: Path) -> None:
    module = Single(nn.Embedding(9, 4), column)
    with pytest.raises(InvalidInput, match=r"no input 'id'.*did you mean 'ids'.*its inputs are \['ids'\]") as refusal:
        publish(module, IDS, tmp_path, name="m", user_inputs=["id"])
    assert refusal.value.field == "user_inputs"


def test_a_part_of_a_keyed_jagged_tensor_is_refused_with_what_to_give(tmp_path: Path) -> None:
    jagged = type("JaggedTensor", (), {"__module__": "torchrec.sparse.jagged_tensor"})()
    with pytest.raises(Unsupported, match=r"'ids' is a JaggedTensor of TorchRec; give a KeyedJaggedTensor"):
        publish(Single(nn.Embedding(9, 4), column), (jagged,), tmp_path, name="m")
