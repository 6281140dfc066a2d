"""Trains the models of DeepCTR-Torch with `fit`. Its modules take one float matrix in which ids are columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from benchmarks.libraries.films import FRESH, GENRES, LENGTH, ROWS, SAMPLE, films, sizes
from benchmarks.libraries.trained import Model, Trained

DIM, BATCH = 8, 256
HIDDEN = {"dnn_hidden_units": (16, 8)}
TASKS = {"task_types": ["binary", "binary"], "task_names": ["label", "recent"]}

Columns = list[Any]


def sparse_columns() -> Columns:
    """Returns ids of one value, and two numbers."""
    from deepctr_torch.inputs import DenseFeat, SparseFeat

    found = [SparseFeat(name, sizes()[name], DIM) for name in ("item", "user", "gender", "occupation", "genre")]
    return [*found, DenseFeat("age"), DenseFeat("year")]


def list_columns() -> Columns:
    """Returns sparse_columns and two lists: one pooled by its zeros, one by its length."""
    from deepctr_torch.inputs import SparseFeat, VarLenSparseFeat

    genres, items = SparseFeat("genres", sizes()["genres"], DIM), SparseFeat("history", sizes()["item"], DIM)
    return [
        *sparse_columns(),
        VarLenSparseFeat(genres, GENRES, "mean"),
        VarLenSparseFeat(items, LENGTH, "sum", length_name="history_length"),
    ]


def interest_columns(disliked: bool) -> Columns:
    """Returns what DIN and DIEN take: an item, the history of items, and with `disliked` those not chosen."""
    from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat

    def listed(name: str) -> Any:
        item = SparseFeat(name, sizes()["item"], DIM, embedding_name="item")
        return VarLenSparseFeat(item, LENGTH, length_name="history_length")

    return [
        *(SparseFeat(name, sizes()[name], DIM) for name in ("user", "gender", "item")),
        DenseFeat("age"),
        listed("hist_item"),
        *([listed("neg_hist_item")] if disliked else []),
    ]


def arrays() -> dict[str, Any]:
    """Returns all columns, as `fit` takes them."""
    data = films()
    length = (data["history"] > 0).sum(axis=1)
    return {**data, "hist_item": data["history"], "neg_hist_item": data["disliked"], "history_length": length}


def _trained(build: Callable[[], nn.Module], tasks: int = 1) -> Trained:
    data, module = arrays(), cast(Any, build())
    labels = data["label"]
    if tasks == 2:
        labels = np.stack([labels, labels * (data["year"] > 0.95)], axis=1)
    module.compile("adam", "binary_crossentropy", metrics=[])
    module.fit({name: data[name][:ROWS] for name in module.feature_index}, labels[:ROWS], BATCH, epochs=1, verbose=0)
    parts = [data[name].reshape(len(labels), -1) for name in module.feature_index]
    matrix = torch.from_numpy(np.concatenate(parts, axis=1).astype(np.float32))
    end = ROWS + SAMPLE
    return Trained(module.eval(), matrix[ROWS:end], matrix[end : end + FRESH])


def models() -> list[Model]:
    """Returns every model of the library's table."""
    from deepctr_torch import models as library

    both: dict[str, Callable[[], nn.Module]] = {}

    def two(name: str, columns: Callable[[], Columns], **options: Any) -> None:
        kind = getattr(library, name)
        both[name] = lambda: kind(columns(), columns(), **options)

    def one(name: str, columns: Callable[[], Columns], **options: Any) -> None:
        kind = getattr(library, name)
        both[name] = lambda: kind(columns(), **options)

    for name in ("WDL", "DeepFM", "NFM", "DIFM", "IFM", "FiBiNET", "ONN", "DCN", "DCNMix", "AutoInt", "xDeepFM"):
        two(name, list_columns if name in ("WDL", "DeepFM", "NFM", "DCN") else sparse_columns, **HIDDEN)
    two("AFM", lambda: sparse_columns()[:5])
    two("AFN", sparse_columns, afn_dnn_hidden_units=(16, 8))
    two("CCPM", lambda: sparse_columns()[:5], conv_kernel_width=(3, 2), **HIDDEN)
    one("MLR", sparse_columns)
    one("PNN", list_columns, **HIDDEN)
    both["DIN"] = lambda: library.DIN(interest_columns(False), ["item"], **HIDDEN)
    both["DIEN"] = lambda: library.DIEN(interest_columns(True), ["item"], use_negsampling=True, **HIDDEN)
    found = [Model("deepctr-torch", "ctr", name, partial(_trained, build)) for name, build in both.items()]
    for name in ("SharedBottom", "ESMM", "MMOE", "PLE"):
        kind = getattr(library, name)
        build = partial(_several, kind)
        found.append(Model("deepctr-torch", "multi-task", name, partial(_trained, build, 2)))
    return found


def _several(kind: Callable[..., nn.Module]) -> nn.Module:
    return kind(list_columns(), **TASKS)
