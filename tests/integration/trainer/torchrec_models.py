"""Publishes models of TorchRec's own, loads them, and compares scores: python -m ... FOLDER, where TorchRec is."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from torchrec.models.deepfm import SimpleDeepFMNN
from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRM_Projection

from serving.scoring.scorer import Scorer
from storage.checkpoint.as_of import find_as_of
from storage.features import Column, column_from_jagged, column_from_numpy
from trainer import publish

DIM = 8


class Weighted(nn.Module):
    """Takes a KeyedJaggedTensor alone, with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse, self.over = collection(is_weighted=True), nn.Linear(3 * DIM, 1)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return torch.sigmoid(self.over(self.sparse(features).values()))


def collection(pooling: PoolingType = PoolingType.SUM, *, is_weighted: bool = False) -> EmbeddingBagCollection:
    """Returns two tables, of which two features share one."""
    shared, own = ("goods", ["item", "liked"]), ("shops", ["shop"])
    tables = [
        EmbeddingBagConfig(name=name, embedding_dim=DIM, num_embeddings=90, feature_names=features, pooling=pooling)
        for name, features in (shared, own)
    ]
    return EmbeddingBagCollection(tables=tables, is_weighted=is_weighted)


def drawn(rows: int, *, is_weighted: bool = False) -> KeyedJaggedTensor:
    """Returns bags of up to four ids."""
    lengths = torch.randint(0, 5, (3 * rows,))
    count = int(lengths.sum())
    return KeyedJaggedTensor(
        keys=["item", "shop", "liked"],
        values=torch.randint(0, 90, (count,)),
        lengths=lengths,
        weights=torch.rand(count) if is_weighted else None,
    )


def columns_of(features: KeyedJaggedTensor) -> dict[str, Column]:
    """Returns the keys as a request has them."""
    found: dict[str, Column] = {}
    for key, bags in features.to_dict().items():
        offsets = bags.offsets().to(torch.int64).numpy()
        found[key] = column_from_jagged("INT64", bags.values().numpy(), offsets)
        if bags.weights_or_none() is not None:
            found[f"{key}_weights"] = column_from_jagged("FP32", bags.weights().numpy(), offsets)
    return found


def main(folder: Path) -> None:
    """Prints the names of the models that answer as they do in torch."""
    torch.manual_seed(4)
    sizes: dict[str, list[int]] = {"dense_arch_layer_sizes": [16, DIM], "over_arch_layer_sizes": [8, 1]}
    projections = {"interaction_branch1_layer_sizes": [2 * DIM] * 2, "interaction_branch2_layer_sizes": [2 * DIM] * 2}
    models = {
        "dlrm": DLRM(collection(), 5, **sizes),
        "dlrm_dcn": DLRM_DCN(collection(), 5, dcn_num_layers=2, dcn_low_rank_dim=4, **sizes),
        "dlrm_projection": DLRM_Projection(collection(), 5, **sizes, **projections),
        "deepfm": SimpleDeepFMNN(5, collection(PoolingType.MEAN), 20, 5),
        "weighted": Weighted(),
    }
    for name, module in models.items():
        is_weighted = name == "weighted"
        keyed = drawn(9, is_weighted=is_weighted)
        publish(module.eval(), keyed if is_weighted else (torch.rand(9, 5), keyed), folder / "models", name=name)
        with Scorer(find_as_of(folder / "models" / name), folder / name) as scorer, torch.no_grad():
            for rows in (1, 6, 40):
                dense, features = torch.rand(rows, 5), drawn(rows, is_weighted=is_weighted)
                columns = columns_of(features)
                if not is_weighted:
                    columns["dense_features"] = column_from_numpy("FP32", dense.numpy())
                wanted = module(features) if is_weighted else module(dense, features)
                np.testing.assert_allclose(scorer.score(columns, rows)[0], wanted, rtol=1e-5, atol=2e-6)
        print(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
