"""All lookups in one call beside the layers one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from storage.errors import InvalidInput
from trainer import Embedding, EmbeddingBag, EmbeddingCollection, EmbeddingTable, SparseAdagrad
from trainer.embedding import Embedded

BATCH = 40


def tables() -> list[EmbeddingTable]:
    return [EmbeddingTable("a", 5, seed=1, admit_after=2), EmbeddingTable("b", 16, seed=1)]


def collection(of: list[EmbeddingTable]) -> EmbeddingCollection:
    one, two = of
    return EmbeddingCollection(
        {
            "x": EmbeddingBag(one, "sum"),
            "history": Embedding(two, 3),
            "y": EmbeddingBag(two, "mean"),
            "z": EmbeddingBag(one, "weighted"),
        }
    )


def batch(seed: int) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    inputs = {}
    for name in ("x", "history", "y", "z"):
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 6, BATCH))])
        inputs[f"{name}.values"] = torch.from_numpy(rng.integers(-20, 20, offsets[-1]))
        inputs[f"{name}.offsets"] = torch.from_numpy(offsets)
    inputs["z.weights"] = torch.rand(len(inputs["z.values"]), generator=torch.Generator().manual_seed(seed))
    return inputs


def one_by_one(made: EmbeddingCollection, inputs: dict[str, Tensor]) -> list[Tensor]:
    found = []
    for name, layer in zip(made.names, made.layers, strict=True):
        more = (inputs["z.weights"],) if name == "z" else ()
        result = layer(inputs[f"{name}.values"], inputs[f"{name}.offsets"], *more)
        found.append(result[0] if isinstance(result, tuple) else result)
    return found


def together(made: EmbeddingCollection, inputs: dict[str, Tensor]) -> list[Tensor]:
    embedded = made(inputs)
    return [embedded[name] for name in made.names]


def test_it_gives_and_learns_what_the_layers_do_one_by_one() -> None:
    apart, at_once = tables(), tables()
    layers, fused = collection(apart), collection(at_once)
    optimizers = [SparseAdagrad(each, lr=0.1) for each in (apart, at_once)]
    for step in range(6):
        inputs = batch(step)
        # Layers one by one count an id of two features in two lookups: it may get its row between them.
        results = [one_by_one(layers, inputs), together(fused, inputs)] if step > 2 else []
        if not results:
            for made in (layers, fused):
                together(made, inputs)
            continue
        # Gradients of an id in several layers are added in another order: after a step, rows differ in rounding.
        bound = 0.0 if step == 3 else 1e-5
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound)
        for result, optimizer in zip(results, optimizers, strict=True):
            sum((part**2).sum() for part in result).backward()  # type: ignore[union-attr]
            optimizer.step()
    for one, other in zip(apart, at_once, strict=True):
        rows, same = one.export_rows(), other.export_rows()
        assert rows[0].tolist() == same[0].tolist()
        np.testing.assert_allclose(rows[1], same[1], rtol=1e-4, atol=1e-5)
        assert rows[3].tolist() == same[3].tolist()


def test_results_are_views_of_one_tensor_in_the_order_of_the_features() -> None:
    made = collection(tables())
    embedded = made(batch(1))
    assert embedded.pooled.shape == (BATCH, 5 + 16 + 5)
    torch.testing.assert_close(torch.cat([embedded["x"], embedded["y"], embedded["z"]], 1), embedded.pooled)
    rows, lengths = embedded.sequences["history"]
    assert rows.shape == (BATCH, 3, 16)
    assert lengths.max() == 3
    with pytest.raises(InvalidInput, match="no feature 'w'"):
        embedded["w"]


def test_results_do_not_depend_on_threads() -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            of = tables()
            made, optimizer = collection(of), SparseAdagrad(of, lr=0.1)
            for step in range(5):
                together(made, batch(step))[0].sum().backward()
                optimizer.step()
            found.append([part.tobytes() for table in of for part in table.export_rows()])
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


def test_gradients_of_two_batches_make_one_step() -> None:
    of = tables()
    made = collection(of)
    for _ in range(2):
        together(made, batch(3))
    rows = of[1].export_rows()[1]
    for seed in (3, 3):
        made(batch(seed))["y"].sum().backward()
    twice = SparseAdagrad(of, lr=0.1)
    twice.step()
    assert of[1].steps == 1
    assert not np.array_equal(rows, of[1].export_rows()[1])


def test_backward_may_run_twice_before_a_step() -> None:
    once, twice = tables(), tables()
    made = [collection(of) for of in (once, twice)]
    for each, times in zip(made, (1, 2), strict=True):
        together(each, batch(1))
        loss = each(batch(1))["y"].sum() * (2 / times)
        for _ in range(times):
            loss.backward(retain_graph=True)
    for of in (once, twice):
        SparseAdagrad(of, lr=0.1).step()
    np.testing.assert_allclose(once[1].export_rows()[1], twice[1].export_rows()[1], rtol=1e-6)


def test_a_hook_on_a_layer_is_called() -> None:
    made = collection(tables())
    seen: list[Tensor] = []
    made.layers[0].register_forward_hook(lambda module, given, result: seen.append(result))
    embedded = made(batch(1))
    assert len(seen) == 1
    torch.testing.assert_close(embedded["x"], seen[0])


class Jagged:
    """Has what this package asks of a feature of TorchRec's KeyedJaggedTensor."""

    def __init__(self, inputs: dict[str, Tensor], name: str, shift: int) -> None:
        self._inputs, self._name, self._shift = inputs, name, shift

    def values(self) -> Tensor:
        return self._inputs[f"{self._name}.values"]

    def offsets(self) -> Tensor:
        return (self._inputs[f"{self._name}.offsets"] + self._shift).to(torch.int32)

    def weights_or_none(self) -> Tensor | None:
        return self._inputs.get(f"{self._name}.weights")


class Keyed:
    def __init__(self, inputs: dict[str, Tensor]) -> None:
        self._inputs = inputs

    def keys(self) -> list[str]:
        return ["x", "history", "y", "z"]

    def __getitem__(self, name: str) -> Jagged:
        if name not in self.keys():
            raise KeyError(name)
        return Jagged(self._inputs, name, 100)


def test_a_keyed_jagged_tensor_is_taken() -> None:
    of = tables()
    made = collection(of)
    together(made, batch(1))
    made.eval()
    torch.testing.assert_close(made(Keyed(batch(2))).pooled, made(batch(2)).pooled, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda inputs: inputs.pop("x.values"), "feature 'x': the inputs lack 'x.values'"),
        (lambda inputs: inputs.pop("z.weights"), "feature 'z': .*needs weights"),
        (lambda inputs: inputs.update({"y.values": torch.rand(3)}), "feature 'y': values: expected int64"),
        (lambda inputs: inputs.update({"x.values": torch.arange(2), "x.offsets": torch.tensor([0, 2])}), "bags"),
    ],
)
def test_what_is_no_batch_is_refused_by_name(change: Any, words: str) -> None:
    inputs = batch(1)
    change(inputs)
    with pytest.raises(InvalidInput, match=words):
        collection(tables())(inputs)


def test_features_by_name_are_split_once_and_are_the_parts_in_their_order() -> None:
    made = collection(tables())
    embedded = made(batch(3))
    assert list(embedded.dims) == ["x", "y", "z"]
    for name, part in zip(embedded.dims, embedded.parts(), strict=True):
        assert embedded[name] is part
        torch.testing.assert_close(part, embedded.pooled[:, place(embedded, name)], rtol=0.0, atol=0.0)
    # One node of the graph for all of them: each more would keep a gradient of all features.
    assert len({embedded[name].grad_fn for name in embedded.dims}) == 1


def place(embedded: Embedded, name: str) -> slice:
    """Returns the columns of a feature among all of them."""
    widths = list(embedded.dims.values())
    first = sum(widths[: list(embedded.dims).index(name)])
    return slice(first, first + embedded.dims[name])
