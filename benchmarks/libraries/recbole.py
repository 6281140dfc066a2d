"""Trains the models of RecBole with its own configuration, data sets and trainers, on the MovieLens that it carries.

Its modules take an Interaction, so `Served` stands before all of them.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from functools import cache, partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.libraries.environment import FOLDER
from benchmarks.libraries.films import FRESH, LENGTH, SAMPLE
from benchmarks.libraries.trained import Model, Trained, rows_of
from storage.errors import InvalidInput

DIM = 8
#: Ratings before this time are used: some 20,000 of 100,000.
UNTIL = 879_000_000
CONTEXT = (
    *("LR", "FM", "NFM", "DeepFM", "xDeepFM", "AFM", "FFM", "FwFM", "FNN", "PNN", "DSSM", "WideDeep", "DCN", "DCNV2"),
    *("AutoInt", "FiGNN", "KD_DAGFM", "EulerNet"),
)
SEQUENTIAL = (
    *("FPMC", "HRM", "NPE", "GRU4Rec", "NARM", "STAMP", "Caser", "NextItNet", "SASRec", "BERT4Rec", "SRGNN", "GCSAN"),
    *("TransRec", "HGN", "SHAN", "FOSSIL", "RepeatNet", "GRU4RecF", "SASRecF", "FDSA", "SINE", "LightSANs", "CORE"),
    *("FEARec", "DIN", "DIEN"),
)
SMALL: dict[str, Any] = {
    "embedding_size": DIM,
    "hidden_size": DIM,
    "inner_size": 16,
    "n_layers": 1,
    "n_heads": 2,
    "MAX_ITEM_LIST_LENGTH": LENGTH,
    "mlp_hidden_size": [16, 8],
}
#: What a model asks for beside SMALL.
_PAIRS = {"loss_type": "BPR", "train_neg_sample_args": {"distribution": "uniform", "sample_num": 1}}
OPTIONS: dict[str, dict[str, Any]] = {
    "FPMC": _PAIRS,
    "TransRec": _PAIRS,
    "FEARec": {"n_layers": 2, "global_ratio": 0.6, "sample_type": "un"},
}


class Served(nn.Module):
    """Takes a dict of tensors, and gives the scores that the model predicts."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        from recbole.data.interaction import Interaction

        scores: Tensor = cast(Any, self.model).predict(Interaction(batch))
        return scores


@cache
def _quiet() -> None:
    logging.disable(logging.WARNING)
    for name, kind in (("float_", np.float64), ("complex_", np.complex128), ("unicode_", np.str_)):
        setattr(np, name, kind)
    warnings.filterwarnings("ignore")


def _config(name: str, folder: str) -> Any:
    from recbole.config import Config

    context = name in CONTEXT
    given: dict[str, Any] = {
        "data_path": str(FOLDER / "recbole" / "dataset_example"),
        "checkpoint_dir": folder,
        "epochs": 1,
        "train_batch_size": 512,
        "eval_step": 0,
        "show_progress": False,
        "use_gpu": False,
        "learning_rate": 0.005,
        "val_interval": {"timestamp": f"(-inf,{UNTIL})"},
        "load_col": {
            "inter": ["user_id", "item_id", "rating", "timestamp"],
            "user": ["user_id", "age", "gender", "occupation"],
            "item": ["item_id", "release_year", "class"],
        },
        **SMALL,
    }
    if context:
        given |= {
            "eval_args": {"split": {"RS": [0.8, 0.1, 0.1]}, "order": "RO", "group_by": "none", "mode": "labeled"},
            "threshold": {"rating": 4},
            "metrics": ["AUC"],
            "valid_metric": "AUC",
        }
    elif name in ("DIN", "DIEN"):
        given |= {
            "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "uni100"},
            "metrics": ["AUC"],
            "valid_metric": "AUC",
        }
    else:
        given |= {"train_neg_sample_args": None, "loss_type": "CE"}
    return Config(model=name, dataset="ml-100k", config_dict=given | OPTIONS.get(name, {}))


def _trained(name: str) -> Trained:
    from recbole.data import create_dataset, data_preparation
    from recbole.utils import get_model, get_trainer, init_seed

    _quiet()
    # It writes logs where it runs.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        config = _config(name, folder)
        init_seed(config["seed"], True)
        dataset = create_dataset(config)
        train, _, _ = data_preparation(config, dataset)
        model = get_model(name)(config, train.dataset)
        get_trainer(config["MODEL_TYPE"], name)(config, model).fit(train, saved=False, show_progress=False)
        rows = _rows(train.dataset, model, config)
    if name == "BERT4Rec":
        _mark_at_once(model, rows)
    return Trained(Served(model).eval(), rows_of(rows, 0, SAMPLE), rows_of(rows, SAMPLE, SAMPLE + FRESH))


def _mark_at_once(model: Any, rows: dict[str, Tensor]) -> None:
    """Replaces the model's loop over rows, which puts the mask behind a history, by the same for all rows at once."""
    original = model.reconstruct_test_data

    def marked(item_seq: Tensor, lengths: Tensor) -> Tensor:
        longer = nn.functional.pad(item_seq, (0, 1))
        places = torch.arange(longer.size(1))
        return torch.where(places == lengths.unsqueeze(1), model.mask_token, longer)[:, 1:]

    given = rows[model.ITEM_SEQ], rows[model.ITEM_SEQ_LEN]
    if not torch.equal(original(*given), marked(*given)):
        raise InvalidInput("BERT4Rec puts its mask elsewhere than the adapter")
    model.reconstruct_test_data = marked


def _rows(dataset: Any, model: Any, config: Any) -> dict[str, Tensor]:
    from recbole.data.transform import construct_transform

    rows = dataset.join(dataset.inter_feat[torch.randperm(len(dataset.inter_feat))[: SAMPLE + FRESH]])
    if config["transform"] == "inverse_itemseq":
        rows = construct_transform(config)(dataset, rows)
    found = {name: value for name, value in rows.interaction.items() if name != config["LABEL_FIELD"]}
    if hasattr(model, "NEG_ITEM_SEQ"):
        found[model.NEG_ITEM_SEQ] = found[model.ITEM_SEQ].roll(1, 0)
    return found


def models() -> list[Model]:
    """Returns the context-aware and sequential models of the library's tables."""
    found = [Model("recbole", "context-aware", name, partial(_trained, name), 5) for name in CONTEXT]
    lines = dict.fromkeys(SEQUENTIAL, 5) | {"BERT4Rec": 10}
    return found + [Model("recbole", "sequential", name, partial(_trained, name), lines[name]) for name in SEQUENTIAL]
