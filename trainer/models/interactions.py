"""Interactions of embedded features that models share.

B samples, V vectors, D dim, P = V (V - 1) / 2 pairs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from storage._table import pair_gradients, pair_products


class PairProducts(nn.Module):
    """Dot products of all pairs of vectors, behind the first vector: DLRM's interaction.

    forward(first (B, D) or None, rest (B, n, D)) -> (B, D + P) for the V vectors, first and rest together; pairs are
    ordered by the larger number, then by the smaller one. In training on a processor it is one native call forward and
    one back, which never makes the (V, V) square; on a GPU, compiled, in another precision than float32, and in a
    published graph, it is made of torch's operators.
    """

    places: Tensor

    def __init__(self, vectors: int) -> None:
        super().__init__()
        rows, columns = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("places", rows * vectors + columns, persistent=False)

    def forward(self, first: Tensor | None, rest: Tensor) -> Tensor:
        is_plain = all(_is_plain(each) for each in (first, rest))
        if len(self.places) and rest.requires_grad and is_plain and not torch.compiler.is_compiling():
            result: Tensor = _Pairs.apply(first, rest)  # type: ignore[no-untyped-call]
            return result
        if first is None:
            return self._behind(rest[:, 0], rest)
        return self._behind(first, torch.cat([first.unsqueeze(1), rest], dim=1))

    def by_operators(self, vectors: list[Tensor]) -> Tensor:
        """Computes the same from the vectors (B, D) one by one."""
        return self._behind(vectors[0], torch.stack(vectors, dim=1))

    def _behind(self, first: Tensor, vectors: Tensor) -> Tensor:
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return torch.cat([first, products.index_select(1, self.places)], dim=1)


def _is_plain(tensor: Tensor | None) -> bool:
    return tensor is None or (tensor.device.type == "cpu" and tensor.dtype == torch.float32)


class _Pairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor | None, rest: Tensor) -> Tensor:
        rest = rest.contiguous()
        first = None if first is None else first.contiguous()
        ctx.save_for_backward(first, rest)
        batch, count, dim = rest.shape
        vectors = count + (first is not None)
        out = rest.new_empty(batch, dim + vectors * (vectors - 1) // 2)
        pair_products(_array(first), _array(rest), out.numpy(), torch.get_num_threads())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor]:
        first, rest = ctx.saved_tensors
        first_grad = None if first is None else torch.empty_like(first)
        rest_grad = torch.empty_like(rest)
        pair_gradients(
            _array(first),
            _array(rest),
            grads[0].contiguous().numpy(),
            None if first_grad is None else first_grad.numpy(),
            rest_grad.numpy(),
            torch.get_num_threads(),
        )
        return first_grad, rest_grad


def _array(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.detach().numpy()
