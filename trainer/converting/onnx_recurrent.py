"""Computes recurrent operators of ONNX step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from storage.errors import Unsupported
from trainer.converting.onnx_call import Call, operator

# What a layer computes with where it is not said.
_ACTIVATIONS = {"GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"]}


def _parts(call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Returns a GRU's or an LSTM's x (L, B, I), weights and biases of its one direction.

    Raises Unsupported for what is not computed.
    """
    defaults = {"direction": "forward", "layout": 0, "clip": None, "input_forget": 0}
    usual = _ACTIVATIONS[call.operator]
    if [each.lower() for each in call.get("activations", usual)] != usual:
        raise Unsupported(f"{call.where}: activations={call.get('activations')}; {usual} are computed")
    for name, expected in defaults.items():
        if call.get(name, expected) != expected:
            raise Unsupported(f"{call.where}: {name}={call.get(name)!r}; the default is computed")
    if call.has(4):
        raise Unsupported(f"{call.where}: lengths of sequences")
    bias = call.optional(3)
    return call.tensor(0), call.tensor(1)[0], call.tensor(2)[0], None if bias is None else bias[0], call.optional(5)


@operator("GRU")
def _gru(call: Call) -> Any:
    x, weight, recurrent, bias, state = _parts(call)
    width = recurrent.shape[1]
    wb, rb = (bias[: 3 * width], bias[3 * width :]) if bias is not None else (None, None)
    h = state[0] if state is not None else torch.zeros_like(x[0, :, :1]).expand(-1, width)
    steps: list[Tensor] = []
    for step in functional.linear(x, weight, wb).unbind(0):
        inner = functional.linear(h, recurrent, rb)
        z = torch.sigmoid(step[:, :width] + inner[:, :width])
        r = torch.sigmoid(step[:, width : 2 * width] + inner[:, width : 2 * width])
        if call.get("linear_before_reset", 0):
            n = torch.tanh(step[:, 2 * width :] + r * inner[:, 2 * width :])
        else:
            last = None if rb is None else rb[2 * width :]
            n = torch.tanh(step[:, 2 * width :] + functional.linear(r * h, recurrent[2 * width :], last))
        h = (1 - z) * n + z * h
        steps.append(h)
    return torch.stack(steps).unsqueeze(1), h.unsqueeze(0)


@operator("LSTM")
def _lstm(call: Call) -> Any:
    x, weight, recurrent, bias, state = _parts(call)
    if call.has(7):
        raise Unsupported(f"{call.where}: peepholes")
    width = recurrent.shape[1]
    wb, rb = (bias[: 4 * width], bias[4 * width :]) if bias is not None else (None, None)
    zeros = torch.zeros_like(x[0, :, :1]).expand(-1, width)
    cell = call.optional(6)
    h, c = (zeros if state is None else state[0]), (zeros if cell is None else cell[0])
    steps: list[Tensor] = []
    for step in functional.linear(x, weight, wb).unbind(0):
        i, o, f, g = torch.chunk(step + functional.linear(h, recurrent, rb), 4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        steps.append(h)
    return torch.stack(steps).unsqueeze(1), h.unsqueeze(0), c.unsqueeze(0)
