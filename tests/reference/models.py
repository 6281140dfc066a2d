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


def first_order(weights: Weights, prefix: str, pooled: list[np.ndarray], dense: np.ndarray) -> np.ndarray:
    """The bias, and the first value of each row and the dense features by their weights."""
    result: np.ndarray = weights[f"{prefix}.bias"] + sum(field[0] for field in pooled)
    return result + weights[f"{prefix}.dense.weight"] @ dense if len(dense) else result


def deepfm(weights: Weights, pooled: list[np.ndarray], dense: np.ndarray, _: Any) -> np.ndarray:
    fields = [field[1:] for field in pooled]
    deep = np.concatenate([*fields, dense])
    if len(dense):
        fields.append(weights["dense_factors.weight"] @ dense)
    pairs = sum(fields[i] @ fields[j] for i in range(len(fields)) for j in range(i))
    return first_order(weights, "linear", pooled, dense) + weights["pair_weight"] * pairs + mlp(weights, "deep", deep)


def dlrm(weights: Weights, pooled: list[np.ndarray], dense: np.ndarray, _: Any) -> np.ndarray:
    vectors = list(pooled)
    if len(dense):
        vectors.insert(0, mlp(weights, "bottom", dense))
    products = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
    return mlp(weights, "top", np.concatenate([vectors[0], np.array(products)]))


def wide_deep(weights: Weights, pooled: list[np.ndarray], dense: np.ndarray, _: Any) -> np.ndarray:
    deep = np.concatenate([*(field[1:] for field in pooled), dense])
    return first_order(weights, "wide", pooled, dense) + mlp(weights, "deep", deep)


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


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def linear(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", np.zeros(1))


def layer_norm(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    spread = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    result: np.ndarray = (x - x.mean(axis=-1, keepdims=True)) / spread
    return result * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def number_of_blocks(weights: Weights) -> int:
    return len({name.split(".")[1] for name in weights if name.startswith("blocks.")})


HEADS = 2


def sasrec(weights: Weights, pooled: list[np.ndarray], dense: np.ndarray, sequence: Any) -> np.ndarray:
    """Newest item first, two heads; a row at a time, so that there is no padding."""
    rows, target_number = sequence
    target = pooled[target_number]
    if "project.weight" in weights:
        rows, target = [weights["project.weight"] @ row for row in rows], weights["project.weight"] @ target
    newest = np.zeros_like(target)
    if len(rows):
        x = np.stack(rows) * np.sqrt(len(target)) + weights["positions"][: len(rows)]
        for number in range(number_of_blocks(weights)):
            block = f"blocks.{number}"
            normed = layer_norm(weights, f"{block}.attention_norm", x)
            query, key, value = (
                np.split(linear(weights, f"{block}.{name}", given), HEADS, axis=1)
                for name, given in (("query", normed), ("key", x), ("value", x))
            )
            found = []
            for q, k, v in zip(query, key, value, strict=True):
                scores = q @ k.T / np.sqrt(q.shape[1])
                shares = np.triu(np.exp(scores - scores.max()))
                found.append(shares / shares.sum(axis=1, keepdims=True) @ v)
            x = normed + linear(weights, f"{block}.joined", np.concatenate(found, axis=1))
            x = layer_norm(weights, f"{block}.forward_norm", x)
            x = x + linear(weights, f"{block}.outer", np.maximum(linear(weights, f"{block}.inner", x), 0.0))
        newest = layer_norm(weights, "norm", x[0])
    return mlp(weights, "top", np.concatenate([*pooled, newest, newest * target, dense]))


def hstu(weights: Weights, pooled: list[np.ndarray], dense: np.ndarray, sequence: Any) -> np.ndarray:
    """Newest item first, two heads."""
    rows, target_number = sequence
    x = np.stack([pooled[target_number], *rows])
    if "project.weight" in weights:
        x = x @ weights["project.weight"].T
    tokens = len(x)
    x = x * np.sqrt(x.shape[1]) + weights["positions"][:tokens]
    distances = np.maximum(np.arange(tokens) - np.arange(tokens)[:, None], 0)
    for number in range(number_of_blocks(weights)):
        block = f"blocks.{number}"
        made = silu(linear(weights, f"{block}.first", layer_norm(weights, f"{block}.norm", x)))
        gate, value, query, key = np.split(made, 4, axis=1)
        found = []
        for head, (q, k, v) in enumerate(
            zip(*(np.split(each, HEADS, axis=1) for each in (query, key, value)), strict=True)
        ):
            scores = silu(q @ k.T + weights[f"{block}.bias"][head][distances]) / len(weights["positions"])
            found.append(np.triu(scores) @ v)
        normed = layer_norm(weights, f"{block}.found_norm", np.concatenate(found, axis=1))
        x = x + linear(weights, f"{block}.second", normed * gate)
    return mlp(weights, "top", np.concatenate([*pooled, x[0], dense]))


MODELS: dict[str, Callable[[Weights, list[np.ndarray], np.ndarray, Any], np.ndarray]] = {
    "deepfm": deepfm,
    "dlrm": dlrm,
    "wide_deep": wide_deep,
    "dcnv2": dcnv2,
    "din": din,
    "sasrec": sasrec,
    "hstu": hstu,
}
