"""Computes operators of ONNX that multiply matrices, and those that normalise."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from storage.errors import Unsupported
from trainer.converting.onnx_call import Call, operator


@operator("MatMul")
def _matmul(call: Call) -> Tensor:
    return torch.matmul(call.tensor(0), call.tensor(1))


@operator("Gemm")
def _gemm(call: Call) -> Tensor:
    left, right = call.tensor(0), call.tensor(1)
    left = left.t() if call.get("transA", 0) else left
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    bias = call.optional(2)
    if alpha == 1.0 and beta == 1.0 and call.get("transB", 0) and (bias is None or bias.dim() == 1):
        return functional.linear(left, right, bias)
    product = torch.matmul(left, right.t() if call.get("transB", 0) else right)
    product = product if alpha == 1.0 else product * alpha
    return product if bias is None else product + (bias if beta == 1.0 else bias * beta)


@operator("Einsum")
def _einsum(call: Call) -> Tensor:
    result: Tensor = torch.einsum(call.get("equation"), *call.tensors())
    return result


@operator("Softmax", "LogSoftmax")
def _softmax(call: Call) -> Tensor:
    function = functional.log_softmax if call.operator == "LogSoftmax" else functional.softmax
    return function(call.tensor(0), dim=call.get("axis", -1))


@operator("LayerNormalization")
def _layer_norm(call: Call) -> Tensor:
    x, axis = call.tensor(0), call.get("axis", -1)
    if call.outputs > 1:
        raise Unsupported(f"{call.where}: LayerNormalization that gives its mean")
    shape = [int(size) for size in x.shape[axis:]]
    bias = call.optional(2)
    return functional.layer_norm(
        x, shape, call.tensor(1).expand(shape), None if bias is None else bias.expand(shape), call.get("epsilon", 1e-5)
    )


@operator("RMSNormalization")
def _rms_norm(call: Call) -> Tensor:
    x, axis = call.tensor(0), call.get("axis", -1)
    axes = list(range(axis % x.dim(), x.dim()))
    return x * torch.rsqrt((x * x).mean(axes, keepdim=True) + call.get("epsilon", 1e-5)) * call.tensor(1)


@operator("BatchNormalization")
def _batch_norm(call: Call) -> Tensor:
    if call.get("training_mode", 0) or call.outputs > 1:
        raise Unsupported(f"{call.where}: BatchNormalization in training mode; export the model in eval()")
    x, scale, bias, mean, var = (call.tensor(position) for position in range(5))
    return functional.batch_norm(x, mean, var, scale, bias, False, 0.0, call.get("epsilon", 1e-5))
