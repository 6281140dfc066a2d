"""Faults that are planted in an old model are found and named; what is equal, or rounded, is said to be so."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from emberline.proving.batches import Batch
from emberline.proving.local_model import LocalModel
from emberline.proving.proof_text import document, lines
from emberline.proving.prover import Proof, Prover
from storage.checkpoint.as_of import find_as_of
from storage.errors import InvalidInput, Unsupported
from storage.features import FeatureSpec, column_from_numpy
from tests.integration.serving.test_fallback_served import SPEC, Shop, columns
from trainer import EmbeddingBag, EmbeddingTable, publish
from trainer.embedding import EmbeddingCollection
from trainer.publishing import Publisher

ROWS, TOLERANCE = 96, 1e-5
USERS, ITEMS, TAGS, DIM = 120, 90, 90, 6


class Ranker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.user, self.item = nn.Embedding(USERS, DIM), nn.Embedding(ITEMS, DIM)
        self.tags = nn.EmbeddingBag(TAGS, DIM, mode="mean")
        self.head = nn.Sequential(nn.Linear(3 * DIM + 2, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, user: Tensor, item: Tensor, tags: Tensor, dense: Tensor) -> Tensor:
        parts = [self.rows(self.user, user), self.rows(self.item, item), self.tags(tags), dense]
        return torch.sigmoid(self.head(torch.cat(parts, 1)))

    def rows(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        return table(ids)


class Lenient(Ranker):
    """Reads ids without a row as a vector, as servers with a default vector do."""

    default = torch.zeros(DIM)

    def rows(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        known = (ids >= 0) & (ids < table.num_embeddings)
        return torch.where(known.unsqueeze(1), table(torch.where(known, ids, 0)), self.default)


def requests(unknown: bool = False) -> Batch:
    random = np.random.default_rng(5)
    batch: Batch = {
        "user": random.integers(3, USERS - 3, ROWS),
        "item": random.integers(3, ITEMS - 3, ROWS),
        "tags": random.integers(0, TAGS, (ROWS, 4)),
        "dense": random.random((ROWS, 2)).astype(np.float32),
    }
    if unknown:
        batch["item"][::3] = 1000 + np.arange(len(batch["item"][::3]))
    return batch


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    folder = tmp_path_factory.mktemp("proving")
    sample = {name: torch.from_numpy(values) for name, values in requests().items()}
    publish(Ranker().eval(), sample, folder, name="ranker")
    return LocalModel(find_as_of(folder / "ranker"))


def answers(module: nn.Module) -> Callable[[Batch], Mapping[str, np.ndarray]]:
    def score(batch: Batch) -> Mapping[str, np.ndarray]:
        try:
            with torch.no_grad():
                return {"ctr": module(**{name: torch.from_numpy(values) for name, values in batch.items()}).numpy()}
        except IndexError as error:
            raise InvalidInput(str(error)) from None

    return score


def proved(model: LocalModel, old: nn.Module, batch: Batch | None = None, tolerance: float = TOLERANCE) -> Proof:
    return Prover(model, answers(old.eval()), [batch or requests()], tolerance).prove()


def only_text(proof: Proof) -> str:
    """Returns the one explanation of a proof that explains everything."""
    assert proof.unexplained == 0, "\n".join(lines(proof))
    (explained,) = proof.explained
    assert (explained.before, explained.after) == (proof.first.count, 0)
    assert not explained.hypothesis.is_rounding
    assert not proof.is_equal
    return explained.hypothesis.text


def test_equal_answers_are_equal(model: LocalModel) -> None:
    proof = proved(model, Ranker())
    assert proof.is_equal
    assert proof.explained == ()
    assert document(proof)["equal"] is True


@pytest.mark.parametrize("shift", [1, -2, 3, 17])
def test_a_shift_of_ids_is_named(model: LocalModel, shift: int) -> None:
    old = Ranker()
    # The row of id i lies at i - shift: ids from outside are one off, as with a row for padding.
    old.item = nn.Embedding.from_pretrained(torch.roll(old.item.weight.detach(), -shift, 0))
    batch = requests()
    batch["item"] = np.clip(batch["item"], 20, ITEMS - 20)
    sign = "+" if shift > 0 else "-"
    assert only_text(proved(model, old, batch)) == f"reads the row of id {sign} {abs(shift)} for each id of item"


def test_swapped_tables_are_named(model: LocalModel) -> None:
    old = Ranker()
    old.item.weight, old.tags.weight = old.tags.weight, old.item.weight
    assert only_text(proved(model, old)) == "has the tables item and tags swapped"


class Swapped(Lenient):
    """Gets two inputs in each other's places."""

    def forward(self, user: Tensor, item: Tensor, tags: Tensor, dense: Tensor) -> Tensor:
        return super().forward(item, user, tags, dense)


def test_swapped_features_are_named(model: LocalModel) -> None:
    assert only_text(proved(model, Swapped())) == "takes user for item, and item for user"


class Turned(Ranker):
    def forward(self, user: Tensor, item: Tensor, tags: Tensor, dense: Tensor) -> Tensor:
        return super().forward(user, item, tags, dense.flip(1))


def test_swapped_dense_values_are_named(model: LocalModel) -> None:
    assert only_text(proved(model, Turned())) == "takes dense[0] for dense[1], and the other way round"


class Short(Ranker):
    """Knows the users below 80 alone, and reads one row for all others."""

    read = 0

    def rows(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        is_user = table is self.user
        found = table(torch.where(ids < 80, ids, max(self.read, 0)) if is_user else ids)
        return torch.where((ids < 80).unsqueeze(1), found, 0.0) if is_user and self.read < 0 else found


@pytest.mark.parametrize(
    ("read", "what"),
    [(-1, "reads them as ids without a row"), (0, "reads the row of id 0 for them"), (79, "reads the row of id 79")],
)
def test_a_vocabulary_that_is_cut_off_is_named(model: LocalModel, read: int, what: str) -> None:
    old, batch = Short(), requests()
    old.read = read
    batch["user"][:4] = [79, 80, 81, 100]
    found = only_text(proved(model, old, batch))
    assert found.startswith(f"does not know ids from 80 on of table user, and {what}")


def test_other_pooling_is_named(model: LocalModel) -> None:
    old = Ranker()
    old.tags.mode = "sum"
    assert only_text(proved(model, old)) == "pools tags by sum, where the new one takes the mean"


@pytest.mark.parametrize(
    ("vector", "text"),
    [
        (torch.full((DIM,), 0.25), "0.25 in every place"),
        (torch.linspace(-0.3, 0.4, DIM), r"the vector \[-0.3, -0.16, -0.02, 0.12, 0.26, 0.4\]"),
        (Ranker().item.weight[0].detach(), "the row of id 0"),
    ],
)
def test_another_default_vector_is_named(model: LocalModel, vector: Tensor, text: str) -> None:
    old = Lenient()
    old.default = vector
    found = only_text(proved(model, old, requests(unknown=True)))
    assert "reads ids without a row in table item as " in found
    assert re.search(text, found), found


def test_a_default_vector_is_found_beside_an_output_of_text(model: LocalModel) -> None:
    old = Lenient()
    old.default = torch.linspace(-0.3, 0.4, DIM)

    def score(batch: Batch) -> Mapping[str, np.ndarray]:
        scores = answers(old.eval())(batch)["ctr"]
        return {"label": np.array([b"x"] * len(scores), object), "OUTPUT__0": scores}

    found = Prover(model, score, [requests(unknown=True)], TOLERANCE).prove()
    assert "the vector [-0.3, -0.16, -0.02, 0.12, 0.26, 0.4]" in only_text(found)
    assert found.unpaired == (("label",), ())


def test_rows_that_are_missing_here_are_named(model: LocalModel) -> None:
    class Larger(Lenient):
        def rows(self, table: nn.Embedding, ids: Tensor) -> Tensor:
            known = super().rows(table, ids)
            own = torch.sin(ids.unsqueeze(1) * torch.arange(1, DIM + 1).float())
            return torch.where((ids >= 1000).unsqueeze(1), own, known)

    found = only_text(proved(model, Larger(), requests(unknown=True)))
    assert found.startswith("has rows in table item for 32 ids (1000, 1001, ")
    assert found.endswith("that have none here: missing rows")


def test_stale_rows_are_named_with_their_ids(model: LocalModel) -> None:
    old = Ranker()
    stale = [10, 30, 31, 50]
    with torch.no_grad():
        old.item.weight[stale] += 0.5
    batch = requests()
    batch["item"][:8] = stale * 2
    assert only_text(proved(model, old, batch)) == (
        "has other values in table item for 4 ids (10, 30, 31, 50) of item: stale or newer rows"
    )


def test_stale_rows_of_ids_that_are_computed_are_named(tmp_path: Path) -> None:
    class Items(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = EmbeddingTable("items", DIM, optimizer="sgd", seed=4)
            self.table.lookup(np.arange(ITEMS), train=True)
            self.features = EmbeddingCollection({"item": EmbeddingBag(self.table)})

        def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"score": torch.sigmoid(self.features(inputs).pooled.sum(dim=1, keepdim=True))}

    item = {"name": "item", "inputs": ["raw"], "output": "ids", "table": "items"}
    shifted = [{"op": "add", "values": [-5000]}]
    spec = FeatureSpec.parse(
        {"inputs": [{"name": "raw", "dtype": "INT64"}], "features": [{**item, "transforms": shifted}]}
    )
    raw = 5000 + np.random.default_rng(3).integers(0, ITEMS, ROWS)
    raw[:3] = 5033
    folder = Publisher(Items(), {"raw": column_from_numpy("INT64", raw)}, tmp_path, name="items", spec=spec).publish()
    here, old = (LocalModel(find_as_of(folder.parent)) for _ in range(2))
    old.rows["items"].find(np.array([0]))
    old.rows["items"]._rows[33] += 0.5
    proof = Prover(here, lambda batch: old.score(old.features(batch)), [{"raw": raw}], TOLERANCE).prove()
    assert only_text(proof) == "has other values in table items for the id 33 of item: stale or newer rows"


def test_only_rows_that_an_experiment_confirms_are_called_stale(model: LocalModel) -> None:
    class Two(Ranker):
        """Has a stale row of an item, and another network for one user, whose items no other request has."""

        def forward(self, user: Tensor, item: Tensor, tags: Tensor, dense: Tensor) -> Tensor:
            scores = super().forward(user, item, tags, dense)
            return torch.where((dense[:, :1] > 2), scores * 0.5, scores)

    old = Two()
    with torch.no_grad():
        old.item.weight[[85]] += 0.5
    batch = requests()
    batch["item"] = np.clip(batch["item"], 3, 70)
    batch["item"][:4], batch["item"][4:8] = 85, [80, 81, 82, 83]
    batch["dense"][4:8, 0] = 3.0
    proof = proved(model, old, batch)
    assert proof.first.count == 8
    assert proof.unexplained == 4
    assert [each.hypothesis.text for each in proof.explained] == [
        "has other values in table item for the id 85 of item: stale or newer rows"
    ]
    assert [each.feature for each in proof.attributions] == ["dense[0]"]


def test_rows_that_the_old_server_lacks_are_named(model: LocalModel) -> None:
    old = Ranker()
    with torch.no_grad():
        old.user.weight[40:60] = 0.0
    found = only_text(proved(model, old))
    assert found.startswith("has no row in table user for ")
    assert " of user: rows that are newer here, or missing there" in found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounded_rows_are_equal_but_for_rounding(model: LocalModel, dtype: torch.dtype) -> None:
    old = Ranker()
    for table in (old.user, old.item, old.tags):
        table.weight.data = table.weight.data.to(dtype).float()
    proof = proved(model, old)
    assert proof.first.count > 30
    assert proof.is_equal
    assert f"rows of all tables as {'fp16' if dtype == torch.float16 else 'bf16'}" in proof.explained[0].hypothesis.text


def test_a_network_in_half_precision_is_equal_but_for_rounding(model: LocalModel) -> None:
    class Half(Ranker):
        def forward(self, user: Tensor, item: Tensor, tags: Tensor, dense: Tensor) -> Tensor:
            parts = [self.user(user), self.item(item), self.tags(tags), dense]
            return torch.sigmoid(self.head.half()(torch.cat(parts, 1).half()).float())

    proof = proved(model, Half())
    assert proof.first.count > 10
    assert proof.is_equal, "\n".join(lines(proof))


@pytest.mark.parametrize(("dtype", "is_whole"), [(torch.bfloat16, False), (torch.bfloat16, True), (torch.half, True)])
def test_answers_of_lower_precision_are_equal_but_for_rounding(
    model: LocalModel, dtype: torch.dtype, is_whole: bool
) -> None:
    class Lower(Ranker):
        def forward(self, user: Tensor, item: Tensor, tags: Tensor, dense: Tensor) -> Tensor:
            parts = [self.user(user), self.item(item), self.tags(tags), dense]
            logit = self.head.to(dtype)(torch.cat(parts, 1).to(dtype))
            return torch.sigmoid(logit if is_whole else logit.float()).float()

    proof = proved(model, Lower())
    assert proof.is_equal, "\n".join(lines(proof))
    assert [each.hypothesis.is_rounding for each in proof.explained] == [True]


def test_slightly_stale_rows_are_not_called_rounding(model: LocalModel) -> None:
    old = Ranker()
    with torch.no_grad():
        old.item.weight[[10, 30]] += 0.004
    batch = requests()
    batch["item"][:8] = [10, 30] * 4
    proof = proved(model, old, batch)
    assert 8 <= proof.first.count < 14
    assert "has other values in table item for 2 ids (10, 30) of item" in only_text(proof)


@pytest.mark.parametrize("where", ["head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias"])
def test_a_slightly_changed_weight_is_not_called_rounding(model: LocalModel, where: str) -> None:
    old = Ranker()
    with torch.no_grad():
        old.get_parameter(where).view(-1)[0] += 0.003
    proof = proved(model, old)
    assert proof.first.count > 0
    assert not proof.is_equal, "\n".join(lines(proof))


def test_two_faults_at_once_are_named_both(model: LocalModel) -> None:
    old = Ranker()
    old.tags.mode = "sum"
    old.user = nn.Embedding.from_pretrained(torch.roll(old.user.weight.detach(), -1, 0))
    proof = proved(model, old)
    assert proof.unexplained == 0, "\n".join(lines(proof))
    assert {each.hypothesis.about for each in proof.explained} == {"tags", "user"}


def test_what_is_not_explained_is_said_with_the_feature_and_the_smallest_request(model: LocalModel) -> None:
    class Scaled(Ranker):
        def forward(self, user: Tensor, item: Tensor, tags: Tensor, dense: Tensor) -> Tensor:
            return super().forward(user, item, tags, torch.stack([dense[:, 0], dense[:, 1].abs().sqrt()], 1))

    batch = requests()
    batch["dense"][::2, 1] = 1.0
    proof = proved(model, Scaled(), batch)
    assert proof.unexplained > 0
    assert proof.explained == ()
    assert [each.feature for each in proof.attributions] == ["dense[1]"]
    assert proof.attributions[0].is_certain
    assert proof.example is not None
    assert not proof.example["user"].any()
    assert not proof.example["tags"].any()
    assert proof.example["dense"][0, 1] != 0
    told = "\n".join(lines(proof))
    assert "NOT explained: " in told
    assert "feature dense[1] alone makes a difference" in told


def test_other_weights_of_the_network_follow_no_feature_and_are_not_explained(model: LocalModel) -> None:
    old = Ranker()
    with torch.no_grad():
        old.head[2].get_parameter("bias").add_(0.3)
    proof = proved(model, old)
    assert proof.unexplained == ROWS
    assert proof.explained == ()
    assert not proof.is_equal
    told = "\n".join(lines(proof))
    assert "explained: the old server" not in told
    assert "it follows no single feature: the network, or its weights, may be of another training" in told


def test_outputs_of_other_names_have_to_be_paired(model: LocalModel) -> None:
    def two(batch: Batch) -> Mapping[str, np.ndarray]:
        scores = answers(Ranker().eval())(batch)["ctr"]
        return {"a": scores, "b": scores}

    with pytest.raises(InvalidInput, match=r"outputs are \['a', 'b'\].*--output OURS=THEIRS"):
        Prover(model, two, [requests()], TOLERANCE).prove()


def test_rows_of_a_chain_of_fallbacks_are_computed(tmp_path: Path) -> None:
    shop = Shop()
    folder = Publisher(shop, columns(64), tmp_path, name="shop", spec=SPEC).publish()
    model = LocalModel(find_as_of(folder.parent))
    model.check_golden()


def test_a_snapshot_that_is_not_computed_here_is_refused(model: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model.pooling, "tags", "sum")
    with pytest.raises(Unsupported, match=r"its golden requests get other scores here, .* apart in 'score'"):
        model.check_golden()
