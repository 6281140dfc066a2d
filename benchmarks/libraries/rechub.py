"""Trains the models of torch-rechub with its own trainers. Its modules take a dict, as `publish` does.

A model of its table `matching` has a mode in which it gives the vectors of users; that is published.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.libraries.films import FRESH, LENGTH, ROWS, SAMPLE, films, sizes
from benchmarks.libraries.trained import Model, Trained, rows_of

DIM, NEGATIVES, BATCH = 8, 3, 256
MLP: dict[str, Any] = {"dims": [16, 8], "dropout": 0.1}
TOWER: dict[str, Any] = {"dims": [16, DIM], "activation": "prelu"}

SPARSE = ("user", "item", "gender", "occupation", "genre")
WIDE = (*SPARSE, "age", "year")
LISTS = ("user", "gender", "item", "history")
USER = ("user", "gender", "history")

Build = Callable[["Features"], nn.Module]


class Features:
    """The features of one model; they hold its embedding layers."""

    def __init__(self) -> None:
        from torch_rechub.basic.features import DenseFeature, SequenceFeature, SparseFeature

        rows = sizes()
        self.user, self.gender, self.occupation, self.genre = (
            SparseFeature(name, rows[name], DIM) for name in ("user", "gender", "occupation", "genre")
        )
        self.item = SparseFeature("item", rows["item"], DIM, padding_idx=0)
        self.sparse: list[Any] = [self.user, self.item, self.gender, self.occupation, self.genre]
        self.dense: list[Any] = [DenseFeature("age"), DenseFeature("year")]
        items = partial(SequenceFeature, vocab_size=rows["item"], embed_dim=DIM, shared_with="item", padding_idx=0)
        self.history, self.disliked, self.negatives = (
            items(name, pooling="concat") for name in ("history", "disliked", "negatives")
        )
        self.pooled = items("history", pooling="mean")
        self.negative = SparseFeature("negative", rows["item"], DIM, shared_with="item", padding_idx=0)
        self.weight = DenseFeature("weight")
        self.genres = SequenceFeature("genres", rows["genres"], DIM, pooling="mean", padding_idx=0)
        self.alone = SequenceFeature("history", rows["item"], DIM, pooling="concat", padding_idx=0)
        #: The weights of a linear part, and rows for each pair of fields.
        self.linear = [SparseFeature(each.name, each.vocab_size, 1) for each in self.sparse]
        self.crossed = [SparseFeature(each.name, each.vocab_size * len(self.sparse), DIM) for each in self.sparse]


class First(nn.Module):
    """Takes the batch, and gives the first of the outputs: the others of DIEN are losses of the whole batch."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        scores: Tensor = self.model(x)[0]
        return scores


@cache
def columns() -> dict[str, Tensor]:
    """Returns the columns of all rows, as the library's data sets hold them."""
    found = {name: torch.from_numpy(values) for name, values in films().items()}
    generator = torch.Generator().manual_seed(1)
    rows = len(found["item"])
    found["negatives"] = torch.randint(1, sizes()["item"], (rows, NEGATIVES), generator=generator)
    found["negative"] = found["negatives"][:, 0]
    found["weight"] = 0.5 + found["age"]
    found |= {"seq": found["history"], "pos": found["history"].roll(-1, 1), "neg": found["disliked"]}
    found["both"] = torch.stack([found["label"], (found["year"] > 0.95).float()], dim=1)
    # A click, a conversion, and both: what ESMM learns from.
    found["three"] = torch.stack([found["both"][:, 1], found["label"], found["label"] * found["both"][:, 1]], dim=1)
    found["first"] = torch.zeros(rows, dtype=torch.int64)
    return found


def _loader(names: Sequence[str], label: str) -> Any:
    from torch_rechub.utils.data import TorchDataset

    data = columns()
    rows = TorchDataset({name: data[name][:ROWS] for name in names}, data[label][:ROWS])
    return torch.utils.data.DataLoader(rows, batch_size=BATCH, shuffle=True)


def _trained(module: nn.Module, names: Sequence[str]) -> Trained:
    batch = {name: columns()[name] for name in names}
    end = ROWS + SAMPLE
    return Trained(module.eval(), rows_of(batch, ROWS, end), rows_of(batch, end, end + FRESH))


def _ranking(names: Sequence[str], build: Build, *, loss_mode: bool = True) -> Trained:
    from torch_rechub.trainers import CTRTrainer

    torch.manual_seed(1)
    module = build(Features())
    with tempfile.TemporaryDirectory() as folder:
        rates = {"lr": 0.01}
        trainer = CTRTrainer(module, optimizer_params=rates, n_epoch=1, loss_mode=loss_mode, model_path=folder)
        trainer.fit(_loader(names, "label"))
    return _trained(module, names)


def _tasks(names: Sequence[str], build: Build, label: str = "both") -> Trained:
    from torch_rechub.trainers import MTLTrainer

    torch.manual_seed(1)
    module, loader = build(Features()), _loader(names, label)
    with tempfile.TemporaryDirectory() as folder:
        kinds = ["classification"] * columns()[label].shape[1]
        MTLTrainer(module, kinds, optimizer_params={"lr": 0.01}, n_epoch=1, model_path=folder).fit(loader, loader)
    return _trained(module, names)


def _matching(
    names: Sequence[str], served: Sequence[str], build: Build, *, mode: int = 2, label: str = "first"
) -> Trained:
    from torch_rechub.trainers import MatchTrainer

    torch.manual_seed(1)
    module: Any = build(Features())
    with tempfile.TemporaryDirectory() as folder:
        # Models without a list of negatives draw them from the batch.
        drawn = {"in_batch_neg": True, "in_batch_neg_ratio": NEGATIVES} if names == (*served, "item") else {}
        MatchTrainer(module, mode=mode, n_epoch=1, model_path=folder, **drawn).fit(_loader(names, label))
    module.mode = "user"
    return _trained(module, served)


def models() -> list[Model]:
    """Returns every model of the library's tables that takes rows of features."""
    return [*_rankers(), *_taskers(), *_matchers()]


def _rankers() -> list[Model]:
    from torch_rechub.models import ranking

    found: dict[str, tuple[Sequence[str], Build]] = {
        "WideDeep": (WIDE, lambda f: ranking.WideDeep(f.dense, f.sparse, MLP)),
        "DeepFM": (WIDE, lambda f: ranking.DeepFM(f.sparse + f.dense, f.sparse, MLP)),
        "DCN": (WIDE, lambda f: ranking.DCN(f.sparse + f.dense, 2, MLP)),
        "DCNv2": (WIDE, lambda f: ranking.DCNv2(f.sparse + f.dense, 2, MLP)),
        "EDCN": (SPARSE, lambda f: ranking.EDCN(f.sparse, 2, dict(MLP))),
        "AFM": (SPARSE, lambda f: ranking.AFM(f.sparse, DIM)),
        "FiBiNet": (SPARSE, lambda f: ranking.FiBiNet(f.sparse, MLP)),
        "AutoInt": (WIDE, lambda f: ranking.AutoInt(f.sparse, f.dense, mlp_params=MLP)),
        "DeepFFM": (SPARSE, lambda f: ranking.DeepFFM(f.linear, f.crossed, DIM, MLP)),
        "FatDeepFFM": (SPARSE, lambda f: ranking.FatDeepFFM(f.linear, f.crossed, DIM, 2, MLP)),
        "BST": (LISTS, lambda f: ranking.BST([f.user, f.gender], [f.history], [f.item], MLP, nhead=2)),
        "DIN": (LISTS, lambda f: ranking.DIN([f.user, f.gender], [f.history], [f.item], MLP, {"dims": [8]})),
        "DeepFM-lists": (
            ("user", "item", "genres", "history", "age"),
            lambda f: ranking.DeepFM([f.user, f.item, f.genres, f.pooled, *f.dense[:1]], [f.user, f.item], MLP),
        ),
    }
    rankers = [Model("torch-rechub", "ranking", name, partial(_ranking, *entry)) for name, entry in found.items()]

    def dien(features: Features) -> nn.Module:
        f = features
        built: nn.Module = ranking.DIEN([f.user, f.gender], [f.history], [f.disliked], [f.item], MLP)
        return built

    def train() -> Trained:
        trained = _ranking((*LISTS, "disliked"), dien, loss_mode=False)
        return Trained(First(trained.module), trained.sample, trained.fresh)

    return [*rankers, Model("torch-rechub", "ranking", "DIEN", train, 5)]


def _taskers() -> list[Model]:
    from torch_rechub.models import multi_task

    kinds, towers, expert = ["classification"] * 2, [{"dims": [8]}] * 2, {"dims": [16]}
    found: dict[str, Build] = {
        "SharedBottom": lambda f: multi_task.SharedBottom(f.sparse + f.dense, kinds, expert, towers),
        "MMOE": lambda f: multi_task.MMOE(f.sparse + f.dense, kinds, 2, expert, towers),
        "PLE": lambda f: multi_task.PLE(f.sparse + f.dense, kinds, 1, 2, 1, expert, towers),
        "AITM": lambda f: multi_task.AITM(f.sparse + f.dense, 2, expert, towers),
    }
    trained = [Model("torch-rechub", "multi-task", name, partial(_tasks, WIDE, build)) for name, build in found.items()]

    def esmm(features: Features) -> nn.Module:
        f = features
        built: nn.Module = multi_task.ESMM([f.user, f.gender], [f.item, f.genre], expert, expert)
        return built

    train = partial(_tasks, ("user", "gender", "item", "genre"), esmm, "three")
    return [*trained, Model("torch-rechub", "multi-task", "ESMM", train)]


def _matchers() -> list[Model]:
    from torch_rechub.models import matching as m
    from torch_rechub.models.matching import dssm_senet

    def listed(kind: Any, *options: Any) -> tuple[Sequence[str], Sequence[str], Build]:
        names = (*USER, "item", "negatives")
        return names, USER, lambda f: kind([f.user, f.gender], [f.history], [f.item], [f.negatives], *options)

    found: dict[str, tuple[Sequence[str], Sequence[str], Build]] = {
        "YoutubeDNN": (
            (*USER, "item", "negatives"),
            USER,
            lambda f: m.YoutubeDNN([f.user, f.gender, f.pooled], [f.item], [f.negatives], TOWER),
        ),
        "YoutubeSBC": (
            (*USER, "item", "weight"),
            USER,
            lambda f: m.YoutubeSBC([f.user, f.gender, f.pooled], [f.item], [f.weight], TOWER, TOWER, BATCH),
        ),
        "GRU4Rec": listed(m.GRU4Rec, TOWER),
        "MIND": listed(m.MIND, LENGTH),
        "ComirecDR": listed(_routed, LENGTH),
        "ComirecSA": listed(m.ComirecSA),
        "SINE": (
            ("history", "item", "negatives"),
            ("history",),
            lambda f: m.SINE(["history"], ["item"], ["negatives"], sizes()["item"], DIM, DIM, 4, 2, LENGTH),
        ),
        "NARM": (("history", "item"), ("history",), lambda f: m.NARM(f.alone, DIM, 0.1, 0.1, f.item)),
        "STAMP": (("history", "item"), ("history",), lambda f: m.STAMP(f.alone, 0.1, 0.1, f.item)),
    }
    trains: dict[str, Callable[[], Trained]] = {name: partial(_matching, *entry) for name, entry in found.items()}
    for name, kind in (("DSSM", m.DSSM), ("DSSM-SENet", dssm_senet.DSSM)):
        trains[name] = partial(_matching, (*USER, "item"), USER, partial(_towers, kind), mode=0, label="label")
    trains["FaceBookDSSM"] = partial(
        _matching,
        (*USER, "item", "negative"),
        USER,
        lambda f: m.FaceBookDSSM([f.user, f.gender, f.pooled], [f.item], [f.negative], TOWER, TOWER),
        mode=1,
    )
    trains["SASRec"] = partial(_matching, ("seq", "pos", "neg"), ("seq",), _sasrec, mode=1)
    return [Model("torch-rechub", "matching", name, train) for name, train in trains.items()]


def _routed(*arguments: Any) -> nn.Module:
    from torch_rechub.models.matching import ComirecDR

    built = ComirecDR(*arguments)
    # The library leaves these weights as the memory was.
    nn.init.normal_(built.capsule.w, std=0.1)
    module: nn.Module = built
    return module


def _towers(kind: Any, features: Features) -> nn.Module:
    f = features
    built: nn.Module = kind([f.user, f.gender, f.pooled], [f.item], TOWER, TOWER)
    return built


def _sasrec(_: Features) -> nn.Module:
    from torch_rechub.basic.features import SequenceFeature
    from torch_rechub.models.matching import SASRec

    rows = sizes()["item"]
    items = [SequenceFeature("seq", rows, DIM, pooling="concat")]
    items += [SequenceFeature(name, rows, DIM, pooling="concat", shared_with="seq") for name in ("pos", "neg")]
    built: nn.Module = SASRec(items, max_len=LENGTH)
    return built
