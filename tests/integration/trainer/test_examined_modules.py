"""Modules that look at themselves or at their inputs while they are examined are served as torch computes them, or
refused by name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from storage.errors import InvalidInput, Unsupported
from tests.integration.trainer.idioms import DIM, IDS, LENGTH, Draw, Model, histories, matrix
from tests.integration.trainer.test_idioms import check_served
from trainer import publish


class Sized(nn.Embedding):
    """Has an attribute of its own class, and asks for its weight."""

    is_sized = True

    @property
    def rows(self) -> int:
        return len(self.weight)

    def scaled(self, ids: Tensor) -> Tensor:
        return self(ids) * 2


class Twice(nn.Embedding):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * 2


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2


def by_class(model: Any, history: Tensor) -> Tensor:
    assert isinstance(model.items, nn.Module)
    rows = model.items(history) if isinstance(model.items, nn.Embedding) else model.items(history) * 0
    return model.head(rows.sum(1))


def by_its_own_class(model: Any, history: Tensor) -> Tensor:
    sized = model.sized
    rows = sized.scaled(history) * (sized.rows if isinstance(sized, Sized) and sized.is_sized else 0)
    return model.head(rows.sum(1) / sized.num_embeddings)


def called_twice(model: Any, history: Tensor) -> Tensor:
    return model.head(model.twice(history).sum(1))


def of_computed_weights(model: Any, history: Tensor) -> Tensor:
    return model.head(model.one(history).sum(1) - model.other(history).mean(1) + model.items(history).sum(1))


def of_parts_of_one_weight(model: Any, history: Tensor) -> Tensor:
    return model.head(model.few(history % 5).sum(1) + model.whole(history).sum(1))


def floats_as_small_integers(model: Any, x: Tensor) -> Tensor:
    return model.head(model.items(x[:, 0].int() % IDS) + model.items(x[:, 1].int() + 1))


def large_floats(rows: int) -> tuple[Tensor, ...]:
    return (torch.cat([torch.rand(rows, 1) * 2**40, torch.randint(0, 10, (rows, 1)).float()], 1),)


def computed() -> Model:
    module = Model(of_computed_weights, one=nn.Embedding(IDS, DIM), other=nn.Embedding(IDS, DIM))
    for name in ("one", "other"):
        parametrize.register_parametrization(module.get_submodule(name), "weight", Doubled())
    return module


def parts() -> Model:
    whole = torch.randn(IDS, DIM)
    layers = {"few": nn.Embedding.from_pretrained(whole[:5]), "whole": nn.Embedding.from_pretrained(whole)}
    return Model(of_parts_of_one_weight, **layers)


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (lambda: Model(by_class), histories),
        (lambda: Model(by_its_own_class, sized=Sized(IDS, DIM)), histories),
        (lambda: Model(called_twice, twice=Twice(IDS, DIM)), histories),
        (computed, histories),
        (parts, histories),
        (lambda: Model(floats_as_small_integers), matrix),
        (lambda: nn.DataParallel(Model(by_class)), histories),
    ],
    ids=["class", "own class", "own call", "computed weights", "parts of a weight", "int32", "DataParallel"],
)
def test_a_module_that_asks_is_served_as_torch_computes_it(
    make: Callable[[], nn.Module], draw: Draw, tmp_path: Path
) -> None:
    torch.manual_seed(2)
    check_served(make().eval(), draw, tmp_path)


def test_floats_beyond_32_bits_are_not_followed_as_integers(tmp_path: Path) -> None:
    module = Model(lambda model, x: model.head(model.large(x[:, 0].int() % IDS)), large=nn.Embedding(1 << 20, DIM))
    with pytest.raises(Unsupported, match=r"'large'.*computed inside forward\(\) by aten.remainder"):
        publish(module, large_floats(13), tmp_path, name="m")


def test_a_wrapped_module_takes_its_arguments_by_name(tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items, self.head = nn.Embedding(IDS, DIM), nn.Linear(DIM + 1, 1)

        def forward(self, item: Tensor, price: Tensor) -> Tensor:
            return self.head(torch.cat([self.items(item), price], 1))

    sample = {"price": torch.rand(9, 1), "item": torch.randint(0, IDS, (9,))}
    folder = publish(nn.DataParallel(Named()), sample, tmp_path, name="m")
    assert {each.name for each in folder.iterdir()} >= {"manifest.json", "features.json"}


def offsets_cut_off(model: Any, ids: Tensor, offsets: Tensor) -> Tensor:
    return model.head(model.bag(ids, offsets.clamp(max=100)))


def offsets_shifted(model: Any, ids: Tensor, offsets: Tensor) -> Tensor:
    return model.head(model.bag(ids, offsets * 1 - 0))


def offsets_without_the_end(model: Any, ids: Tensor, offsets: Tensor) -> Tensor:
    return model.head(model.bag(ids, offsets[:-1]))


def offsets_from_ends(model: Any, ids: Tensor, ends: Tensor) -> Tensor:
    return model.head(model.closed(ids, torch.cat([torch.zeros(1, dtype=torch.int64), ends]).long()))


def bags() -> dict[str, nn.Module]:
    layers = {"bag": nn.EmbeddingBag(IDS, DIM, mode="sum")}
    return {**layers, "closed": nn.EmbeddingBag(IDS, DIM, mode="sum", include_last_offset=True)}


@pytest.mark.parametrize("function", [offsets_cut_off, offsets_shifted])
def test_offsets_that_forward_changes_are_refused(function: Callable[..., Tensor], tmp_path: Path) -> None:
    sample = torch.arange(9), torch.tensor([0, 2, 5])
    with pytest.raises(Unsupported, match=r"'bag'.*forward\(\) changes its offsets.*as it is"):
        publish(Model(function, **bags()), sample, tmp_path, name="m")


@pytest.mark.parametrize(
    ("function", "offsets"),
    [(offsets_without_the_end, [0, 2, 5, 9]), (offsets_from_ends, [2, 5, 9])],
)
def test_offsets_may_lack_their_end_or_their_beginning(
    function: Callable[..., Tensor], offsets: list[int], tmp_path: Path
) -> None:
    sample = torch.arange(9), torch.tensor(offsets)
    folder = publish(Model(function, **bags()), sample, tmp_path, name="m")
    assert '"list"' in (folder / "features.json").read_text()


def test_arrays_of_numpy_in_a_batch_are_refused_by_name(tmp_path: Path) -> None:
    def forward(model: Any, batch: dict[str, Any]) -> Tensor:
        return model.head(model.items(batch["ids"]).sum(1)) * torch.as_tensor(batch["price"])

    batch = {"ids": torch.randint(0, IDS, (5, LENGTH)), "price": np.ones((5, 1), np.float32)}
    with pytest.raises(InvalidInput, match=r"'price' is an array of numpy.*torch.from_numpy"):
        publish(Model(forward), batch, tmp_path, name="m")
    publish(Model(forward), {**batch, "price": np.float32(2)}, tmp_path, name="m")


def looked_up_by_scores(model: Any, history: Tensor) -> Tensor:
    best = model.items(history).sum(2).argmax(1)
    return model.head(functional.embedding(best, model.rows)) + model.head(model.items(history).sum(1))


def indexed_by_scores(model: Any, history: Tensor) -> Tensor:
    return model.head(model.rows[model.items(history).sum(2).argmax(1)])


@pytest.mark.parametrize("function", [looked_up_by_scores, indexed_by_scores])
def test_a_large_parameter_that_computed_ids_look_up_is_refused(
    function: Callable[..., Tensor], tmp_path: Path
) -> None:
    module = Model(function)
    module.rows = nn.Parameter(torch.zeros(1 << 19, DIM))
    with pytest.raises(Unsupported, match=r"'rows'.*computed inside forward\(\) by aten.argmax.*up to 4 MiB.*it has 8"):
        publish(module, histories(13), tmp_path, name="m")
    module.rows = nn.Parameter(torch.rand(LENGTH, DIM))
    check_served(module.eval(), histories, tmp_path)


def test_other_threads_keep_their_torch_while_a_module_is_exported(tmp_path: Path) -> None:
    length, seen = Tensor.__len__, []

    def forward(model: Any, history: Tensor) -> Tensor:
        def look() -> None:
            seen.append(Tensor.__len__ is length and len(torch.zeros(3)) == 3)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return model.head(model.items(history).sum(1))

    publish(Model(forward), histories(5), tmp_path, name="m")
    assert len(seen) > 3
    assert all(seen)
