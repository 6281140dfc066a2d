"""Products of pairs by native code beside torch's operators."""

from __future__ import annotations

import pytest
import torch

from trainer.models.interactions import PairProducts


@pytest.mark.parametrize("with_first", [True, False])
@pytest.mark.parametrize(("batch", "count", "dim"), [(1, 2, 1), (3, 5, 7), (200, 26, 16), (130, 17, 64), (65, 40, 33)])
def test_products_and_gradients_are_those_of_torch(batch: int, count: int, dim: int, with_first: bool) -> None:
    torch.manual_seed(1)
    vectors = count + with_first
    layer = PairProducts(vectors)
    results = []
    rest = torch.randn(batch, count, dim)
    start = torch.randn(batch, dim) if with_first else None
    for native in (True, False):
        others = rest.clone().requires_grad_()
        first = None if start is None else start.clone().requires_grad_()
        if native:
            out = layer(first, others)
            assert "Pairs" in type(out.grad_fn).__name__
        else:
            out = layer.by_operators([*([] if first is None else [first]), *others.unbind(1)])
        (out * torch.arange(out.shape[1]) / 100).sum().backward()
        assert others.grad is not None
        results.append((out.detach(), others.grad, None if first is None else first.grad))
    for ours, theirs in zip(*results, strict=True):
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_single_vector_has_no_pairs() -> None:
    rest = torch.randn(3, 1, 4, requires_grad=True)
    torch.testing.assert_close(PairProducts(1)(None, rest), rest[:, 0])


def test_results_do_not_depend_on_threads() -> None:
    rest = torch.randn(300, 9, 8, requires_grad=True)
    before = torch.get_num_threads()
    found: list[tuple[bytes, bytes]] = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            rest.grad = None
            out = PairProducts(9)(None, rest)
            out.square().sum().backward()
            assert rest.grad is not None
            found.append((out.detach().numpy().tobytes(), rest.grad.numpy().tobytes()))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]
