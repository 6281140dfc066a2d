"""The zoo's dense parts in float64, written from their papers and the names of their weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Weights = dict[str, np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = 1.0 / (1.0 + np.exp(-x))
    return result


def mlp(weights: Weights, prefix: str, x: np.ndarray) -> np.ndarray:
    """The linear layers under `prefix` in the order of their numbers, ReLU between them."""
    numbers = sorted({int(name.split(".")[1]) for name in weights if name.startswith(f"{prefix}.")})
    for number in numbers:
        x = x @ weights[f"{prefix}.{number}.weight"].T + weights[f"{prefix}.{number}.bias"]
        if number != numbers[-1]:
            x = np.maximum(x, 0.0)
    return x


def deepfm(weights: Weights, pooled: list[np.ndarray], dense: np.ndarray, _: Any) -> np.ndarray:
    deep = [field[1:] for field in pooled]
    fields = list(pooled)
    if len(dense):
        deep.append(dense)
        fields.append(weights["dense_field.weight"] @ dense + weights["dense_field.bias"])
    first_order = sum(field[0] for field in fields)
    pairs = sum(fields[i][1:] @ fields[j][1:] for i in range(len(fields)) for j in range(i))
    result: np.ndarray = weights["bias"] + first_order + pairs + mlp(weights, "deep", np.concatenate(deep))
    return result


def dlrm(weights: Weights, pooled: list[np.ndarray], dense: np.ndarray, _: Any) -> np.ndarray:
    vectors = list(pooled)
    if len(dense):
        vectors.insert(0, mlp(weights, "bottom", dense))
    products = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
    return mlp(weights, "top", np.concatenate([vectors[0], np.array(products)]))


def wide_deep(weights: Weights, pooled: list[np.ndarray], dense: np.ndarray, _: Any) -> np.ndarray:
    result: np.ndarray = weights["bias"] + sum(field[0] for field in pooled)
    if len(dense):
        result = result + weights["wide_dense.weight"] @ dense
    return result + mlp(weights, "deep", np.concatenate([*(field[1:] for field in pooled), dense]))


def dcnv2(weights: Weights, pooled: list[np.ndarray], dense: np.ndarray, _: Any) -> np.ndarray:
    first = np.concatenate([*pooled, dense])
    crossed = first
    for layer in range(len({name.split(".")[1] for name in weights if name.startswith("cross.")})):
        if f"cross.{layer}.weight" in weights:
            linear = weights[f"cross.{layer}.weight"] @ crossed + weights[f"cross.{layer}.bias"]
        else:
            narrow = weights[f"cross.{layer}.down.weight"] @ crossed
            linear = weights[f"cross.{layer}.up.weight"] @ narrow + weights[f"cross.{layer}.up.bias"]
        crossed = first * linear + crossed
    if "deep.0.weight" in weights:
        crossed = np.concatenate([crossed, np.maximum(mlp(weights, "deep", first), 0.0)])
    return mlp(weights, "top", crossed)


def din(weights: Weights, pooled: list[np.ndarray], dense: np.ndarray, sequence: Any) -> np.ndarray:
    rows, target_number = sequence
    target = pooled[target_number]
    interest = np.zeros_like(target)
    if len(rows):
        pairs = [np.concatenate([target, row, target - row, target * row]) for row in rows]
        scores = np.array([mlp(weights, "attention", pair)[0] for pair in pairs])
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        interest = (shares[:, None] * np.stack(rows)).sum(axis=0)
    return mlp(weights, "top", np.concatenate([*pooled, interest, interest * target, dense]))


MODELS: dict[str, Callable[[Weights, list[np.ndarray], np.ndarray, Any], np.ndarray]] = {
    "deepfm": deepfm,
    "dlrm": dlrm,
    "wide_deep": wide_deep,
    "dcnv2": dcnv2,
    "din": din,
}
