"""Computes packed sequences (torch.nn.utils.rnn) over padded rows, so that shapes do not depend on lengths.

While the mode is active, what `pack_padded_sequence` returns holds the padded rows, in the order of the batch.
Recurrent layers keep the state of a row from its length on, and `pad_packed_sequence` fills what lies behind the
length. A packed sequence is known by its `batch_sizes`. B rows, L their padded length, D values of an element, H of a
state.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.overrides import TorchFunctionMode

from storage.errors import Unsupported

_LAYERS = (nn.GRU, nn.LSTM, nn.RNN)
# What may be asked of batch_sizes, which depend on lengths.
_SHAPES = frozenset({"size", "dim", "__get__", "__len__"})
# Operators that return the order of rows itself, and those that return the rows in it.
_OF_ORDER = frozenset({"to", "cpu", "empty_like", "scatter_"})
_IN_ORDER = frozenset({"index_select", "__getitem__"})

State = tuple[Tensor, ...]


class PaddedSequences(TorchFunctionMode):
    """Computes packed sequences of `container.module` over padded rows, while it is active."""

    def __init__(self, container: nn.Module) -> None:
        super().__init__()
        #: Whether the module packed a sequence.
        self.is_used = False
        self._layers = [
            each for each in container.modules() if isinstance(each, _LAYERS) and "forward" not in vars(each)
        ]
        # The batch_sizes of each packed sequence, and its lengths (B,) int64.
        self._known: list[tuple[Tensor, Tensor]] = []
        # Orders of rows: all of them that of the batch.
        self._orders: list[Tensor] = []

    def __enter__(self) -> PaddedSequences:
        for layer in self._layers:
            layer.forward = partial(self._run, layer)  # type: ignore[method-assign]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        for layer in self._layers:
            del layer.forward
        self._known, self._orders = [], []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "sort" and _caller() is pack_padded_sequence.__code__:
            self._orders.append(torch.arange(args[0].shape[0]))
            return args[0], self._orders[-1]
        if name == "_pack_padded_sequence":
            return self._pack(*args)
        lengths = None
        for value in args:
            if isinstance(value, Tensor) and any(value is each for each in self._orders):
                if name in _OF_ORDER:
                    return value
                if name in _IN_ORDER:
                    return args[0]
            lengths = self._lengths_of(value) if lengths is None else lengths
        if lengths is not None and name == "_pad_packed_sequence":
            return _padded(lengths, *args)
        if lengths is not None and name not in _SHAPES:
            raise Unsupported(
                f"the module reads the batch_sizes of a packed sequence ({name}), which depend on lengths: run a layer "
                "of torch over it, or loop over the padded rows and keep the state from the length on by torch.where"
            )
        return func(*args, **kwargs)

    def _pack(self, rows: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        self.is_used = True
        rows = rows if batch_first else rows.transpose(0, 1)
        sizes = torch.ones(rows.shape[1], dtype=torch.int64)
        self._known.append((sizes, lengths))
        return rows, sizes

    def _lengths_of(self, value: Any) -> Tensor | None:
        if not isinstance(value, Tensor):
            return None
        return next((lengths for sizes, lengths in self._known if sizes is value), None)

    def _run(self, layer: nn.RNNBase, input: Any, hx: Any = None) -> Any:
        """Runs a recurrent layer."""
        lengths = self._lengths_of(input.batch_sizes) if isinstance(input, PackedSequence) else None
        if lengths is None:
            return type(layer).forward(layer, input, hx)
        if layer.proj_size:
            raise Unsupported("an LSTM with proj_size runs over a packed sequence; leave the projection to nn.Linear")
        rows, directions = input.data, 2 if layer.bidirectional else 1
        given: State = () if hx is None else hx if isinstance(hx, tuple) else (hx,)
        inside = [(lengths > step).unsqueeze(1) for step in range(rows.shape[1])]
        ends: list[State] = []
        for number in range(layer.num_layers):
            outputs: list[Tensor] = []
            for direction in range(directions):
                zeros = rows.new_zeros(rows.shape[0], layer.hidden_size)
                count = 2 if isinstance(layer, nn.LSTM) else 1
                start = tuple(state[len(ends)] for state in given) or (zeros,) * count
                found, end = _steps(layer, f"_l{number}{'_reverse' if direction else ''}", rows, start, inside)
                outputs.append(found)
                ends.append(end)
            rows = outputs[0] if directions == 1 else torch.cat(outputs, 2)
        states = tuple(torch.stack(each) for each in zip(*ends, strict=True))
        packed = PackedSequence(rows, input.batch_sizes, input.sorted_indices, input.unsorted_indices)
        return packed, states if isinstance(layer, nn.LSTM) else states[0]


def _steps(
    layer: nn.RNNBase, suffix: str, rows: Tensor, state: State, inside: Sequence[Tensor]
) -> tuple[Tensor, State]:
    """Runs one direction of one layer over rows (B, L, D); returns its outputs (B, L, H) and last state.

    inside: by step, (B, 1) bool, the rows that are longer. A backward run begins at a row's last element.
    """
    recurrent = getattr(layer, f"weight_hh{suffix}")
    bias = getattr(layer, f"bias_hh{suffix}") if layer.bias else None
    own = functional.linear(
        rows, getattr(layer, f"weight_ih{suffix}"), getattr(layer, f"bias_ih{suffix}") if layer.bias else None
    ).unbind(1)
    outputs: list[Tensor] = []
    order = list(range(len(inside)))
    for step in reversed(order) if suffix.endswith("_reverse") else order:
        made = _step(layer, own[step], functional.linear(state[0], recurrent, bias), state)
        state = tuple(torch.where(inside[step], new, old) for new, old in zip(made, state, strict=True))
        outputs.append(state[0])
    if suffix.endswith("_reverse"):
        outputs.reverse()
    return torch.stack(outputs, 1), state


def _step(layer: nn.RNNBase, own: Tensor, recurrent: Tensor, state: State) -> State:
    """Returns the next state of each row. own, recurrent: products of the element and of the state with the weights."""
    if isinstance(layer, nn.GRU):
        reset, update, fresh = own.chunk(3, 1)
        reset_h, update_h, fresh_h = recurrent.chunk(3, 1)
        reset, update = torch.sigmoid(reset + reset_h), torch.sigmoid(update + update_h)
        made = torch.tanh(fresh + reset * fresh_h)
        return ((state[0] - made) * update + made,)
    if isinstance(layer, nn.LSTM):
        enter, forget, cell, leave = (own + recurrent).chunk(4, 1)
        memory = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(cell)
        return torch.sigmoid(leave) * torch.tanh(memory), memory
    return (torch.relu(own + recurrent) if layer.nonlinearity == "relu" else torch.tanh(own + recurrent),)


def _padded(
    lengths: Tensor, rows: Tensor, sizes: Tensor, batch_first: bool, value: float, total: int
) -> tuple[Tensor, Tensor]:
    """Returns rows (B, total, ...) with `value` behind their lengths, as pad_packed_sequence does."""
    length = rows.shape[1]
    behind = torch.arange(length) >= lengths.unsqueeze(1)
    rows = rows.masked_fill(behind.reshape(*behind.shape, *[1] * (rows.dim() - 2)), value)
    if total > length:
        rows = functional.pad(rows, (*[0, 0] * (rows.dim() - 2), 0, total - length), value=value)
    return rows if batch_first else rows.transpose(0, 1), lengths


def _caller() -> Any:
    """Returns the code of the function that called an operator, past modes."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_name == "__torch_function__":
        frame = frame.f_back
    return None if frame is None else frame.f_code
