"""Small modules in the idioms of the field, each with a function that draws a batch of it.

B rows, L items of a history, W columns, D dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

IDS, DIM, LENGTH = 50, 4, 6
# Draws the arguments of a module for this many rows.
Draw = Callable[[int], tuple[Tensor, ...]]


class Model(nn.Module):
    """Calls a function of itself and its inputs; `items` is a table, `head` makes the score of (B, D)."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.items = nn.Embedding(IDS, DIM)
        self.head = nn.Linear(DIM, 1)
        for name, part in parts.items():
            self.add_module(name, part)
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


def histories(rows: int) -> tuple[Tensor, ...]:
    """Draws histories (B, L), padded with 0 at the end."""
    lengths = torch.randint(1, LENGTH + 1, (rows, 1))
    return (torch.where(torch.arange(LENGTH) < lengths, torch.randint(1, IDS, (rows, LENGTH)), 0),)


def flags(rows: int) -> tuple[Tensor, ...]:
    (history,) = histories(rows)
    return history, history != 0


def matrix(rows: int) -> tuple[Tensor, ...]:
    """Draws ids as floats beside dense values, (B, 5)."""
    return (torch.cat([torch.randint(0, 10, (rows, 2)).float(), torch.rand(rows, 3)], dim=1),)


def columns(rows: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, 10, (rows, 3)),)


def transposed(rows: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, 10, (3, rows)),)


def apart(rows: int) -> tuple[Tensor, ...]:
    return tuple(torch.randint(0, 10, (rows,)) for _ in range(3))


def some_unknown(rows: int) -> tuple[Tensor, ...]:
    return (torch.randint(-1, IDS, (rows, LENGTH)),)


def weighted(rows: int) -> tuple[Tensor, ...]:
    return torch.randint(0, IDS, (rows, LENGTH)), torch.rand(rows, LENGTH)


def cube(rows: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, IDS, (rows, 2, 3)),)


def masked_mean(model: Model, history: Tensor) -> Tensor:
    mask = (history != 0).unsqueeze(-1).float()
    rows = model.items(history) * mask
    return model.head(rows.sum(1) / mask.sum(1).clamp(min=1))


def lengths(model: Model, history: Tensor) -> Tensor:
    count = (history > 0).sum(dim=1, keepdim=True).float()
    return model.head(model.items(history).sum(1) / count) + history.sum(1, keepdim=True).float() / 1000


def last_item(model: Model, history: Tensor) -> Tensor:
    rows, count = model.items(history), (history != 0).sum(1)
    last = rows.gather(1, (count - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, DIM)).squeeze(1)
    return model.head(last)


def positions(model: Any, history: Tensor) -> Tensor:
    rows = model.items(history) + model.places(torch.arange(LENGTH))
    return model.head(rows.mean(1))


def expanded_positions(model: Any, history: Tensor) -> Tensor:
    places = torch.arange(history.shape[1], device=history.device).unsqueeze(0).expand(history.shape[0], -1)
    return model.head((model.items(history) + model.places(places)).mean(1))


def repeated_positions(model: Any, history: Tensor) -> Tensor:
    places = torch.arange(LENGTH).repeat(history.shape[0], 1)
    return model.head((model.items(history) * model.places(places)).mean(1))


def shifted(model: Any, ids: Tensor) -> Tensor:
    return model.head(model.items(ids + ids.new_tensor([0, 10, 20]).unsqueeze(0)).sum(1))


def hashed(model: Any, history: Tensor) -> Tensor:
    return model.head(model.items((history + 7) % 31).mean(1)) + model.head(model.items(history // 5)).mean(1)


def clamped(model: Any, history: Tensor) -> Tensor:
    return model.head(model.items(history.clamp(2, 20)).mean(1))


def replaced(model: Any, history: Tensor) -> Tensor:
    known = torch.where(history == -1, 0, history)
    return model.head((model.items(known) * (history >= 0).unsqueeze(-1)).mean(1))


def filled(model: Any, history: Tensor) -> Tensor:
    return model.head(model.items(history.masked_fill(history < 0, 49)).mean(1))


def flagged(model: Any, history: Tensor, mask: Tensor) -> Tensor:
    return model.head(model.items(history).masked_fill(~mask.unsqueeze(-1), 0.0).sum(1))


def packed_matrix(model: Any, features: Tensor) -> Tensor:
    rows = [model.items(features[:, k].long()) for k in range(2)]
    return model.head(rows[0] + rows[1]) + model.linear(features[:, 2:])


def ranged_matrix(model: Any, features: Tensor) -> Tensor:
    return model.head(model.items(features[:, 0:1].long()).sum(1)) + model.linear(features[:, 2:5])


def fields_first(model: Any, ids: Tensor) -> Tensor:
    return model.head(sum(model.items(ids[field] + 10 * field) for field in range(3)))


def fields_at_once(model: Any, ids: Tensor) -> Tensor:
    return model.head(model.items(ids).sum(0))


def bag_of_field(model: Any, ids: Tensor) -> Tensor:
    starts = torch.arange(ids.shape[1])
    return model.head(model.bags(ids[0], starts) + model.bags(ids[2], starts))


def stacked(model: Any, *ids: Tensor) -> Tensor:
    joined = torch.stack(ids, dim=1) + torch.tensor([0, 10, 20])
    return model.head(model.items(joined).sum(1))


def joined(model: Any, *ids: Tensor) -> Tensor:
    return model.head(model.items(torch.cat([each.unsqueeze(1) for each in ids], dim=1)).flatten(1)[:, :DIM])


def next_items(model: Any, history: Tensor) -> Tensor:
    start = torch.full((history.shape[0], 1), 3)
    return model.head(model.items(torch.cat([start, history[:, :-1]], dim=1)).mean(1))


def flattened(model: Any, ids: Tensor) -> Tensor:
    return model.head(model.items(ids.view(-1)).view(ids.shape[0], -1, DIM).mean(1))


def every_second(model: Any, history: Tensor) -> Tensor:
    return model.head(model.items(history[:, ::2]).mean(1) + model.items(history.flip(1)).mean(1))


def of_cube(model: Any, ids: Tensor) -> Tensor:
    return model.head(model.items(ids).mean(2).sum(1))


def bag(model: Any, history: Tensor) -> Tensor:
    return model.head(model.bags(history))


def computed_weights(model: Any, history: Tensor, weights: Tensor) -> Tensor:
    return model.head(model.bags(history, per_sample_weights=torch.softmax(weights, dim=1)))


def tied(model: Any, history: Tensor) -> Tensor:
    return model.items(history).mean(1) @ model.items.weight.t()


def two_outputs(model: Any, history: Tensor) -> dict[str, Tensor]:
    return {"score": model.head(model.items(history).mean(1)), "count": (history != 0).sum(1)}


def ordered(rows: int) -> tuple[Tensor, ...]:
    return torch.randint(1, IDS, (rows,)), *histories(rows)


def attention(model: Any, target: Tensor, history: Tensor) -> Tensor:
    query, keys = model.items(target).unsqueeze(1), model.items(history)
    scores = (query * keys).sum(-1).masked_fill(history == 0, -1e9)
    return model.head((scores.softmax(-1).unsqueeze(-1) * keys).sum(1))


def recurrent(model: Any, history: Tensor) -> Tensor:
    states, last = model.recurrent(model.items(history))
    return model.head(states[torch.arange(history.shape[0]), (history != 0).sum(1) - 1]) + model.head(last[-1])


def recurrent_with_cell(model: Any, history: Tensor) -> Tensor:
    states, (last, cell) = model.recurrent(model.items(history))
    return model.head(states.mean(1) + last[0] + cell[0])


def cells(model: Any, history: Tensor) -> Tensor:
    rows = model.items(history)
    state = torch.zeros(rows.shape[0], DIM)
    for step in range(LENGTH):
        state = model.cell(rows[:, step], state)
    return model.head(state)


def causal(model: Any, history: Tensor) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(history.shape[1])
    return model.head(model.encoder(model.items(history), mask)[:, -1])


def causal_and_padded(model: Any, history: Tensor) -> Tensor:
    mask = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)
    return model.head(model.encoder(model.items(history), mask=mask, src_key_padding_mask=history == 0).mean(1))


def encoder() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(DIM, 2, 8, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Parameter(Model):
    """Has a table that is a parameter."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self.table, self.biases = nn.Parameter(torch.randn(IDS, DIM)), nn.Parameter(torch.randn(IDS))


class Scaled(nn.Embedding):
    """Multiplies its rows, as some transformers do."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * DIM**0.5


def of_parameter(model: Any, history: Tensor) -> Tensor:
    rows = functional.embedding(history, model.table).mean(1) + model.table[history[:, 0]]
    return model.head(rows) + model.biases[history[:, 0]].unsqueeze(1)


def of_scores(model: Any, history: Tensor) -> Tensor:
    rows = model.items(history).mean(1)
    return model.head(rows + model.concepts((rows @ model.concepts.weight.t()).argmax(1)))


def with_loss(model: Any, history: Tensor) -> tuple[Tensor, Tensor]:
    score = model.head(model.items(history).mean(1))
    return score, score.square().mean()


def squeezed(model: Any, history: Tensor) -> Tensor:
    return torch.sigmoid(model.head(model.items(history).mean(1, keepdim=True)).squeeze() * 2).unsqueeze(1)


def multiplied(model: Any, ids: Tensor) -> Tensor:
    return model.head(model.items(ids[:, :1].clamp(max=4) * 10 + torch.arange(3)).sum(1))


# The idiom -> the module and how its batch is drawn.
WORKING: dict[str, tuple[Callable[[], nn.Module], Draw]] = {
    "a mask of ids": (lambda: Model(masked_mean), histories),
    "lengths and a sum of ids": (lambda: Model(lengths), histories),
    "the last item by its length": (lambda: Model(last_item), histories),
    "attention with a mask": (lambda: Model(attention), ordered),
    "positions": (lambda: Model(positions, places=nn.Embedding(LENGTH, DIM)), histories),
    "expanded positions": (lambda: Model(expanded_positions, places=nn.Embedding(LENGTH, DIM)), histories),
    "repeated positions": (lambda: Model(repeated_positions, places=nn.Embedding(LENGTH, DIM)), histories),
    "offsets of columns": (lambda: Model(shifted), columns),
    "modulo and division": (lambda: Model(hashed), histories),
    "clamp": (lambda: Model(clamped), histories),
    "where an id is unknown": (lambda: Model(replaced), some_unknown),
    "masked_fill of ids": (lambda: Model(filled), some_unknown),
    "a mask as an input": (lambda: Model(flagged), flags),
    "ids in a float matrix": (lambda: Model(packed_matrix, linear=nn.Linear(3, 1)), matrix),
    "a range of a float matrix": (lambda: Model(ranged_matrix, linear=nn.Linear(3, 1)), matrix),
    "ids (T, N), field by field": (lambda: Model(fields_first), transposed),
    "ids (T, N) at once": (lambda: Model(fields_at_once), transposed),
    "bags of one id with offsets": (lambda: Model(bag_of_field, bags=nn.EmbeddingBag(10, DIM, mode="sum")), transposed),
    "several inputs stacked": (lambda: Model(stacked), apart),
    "several inputs joined": (lambda: Model(joined), apart),
    "a start token before a history": (lambda: Model(next_items), histories),
    "flattened ids": (lambda: Model(flattened), histories),
    "every second id, and reversed": (lambda: Model(every_second), histories),
    "ids of three dimensions": (lambda: Model(of_cube), cube),
    "the largest of a bag": (lambda: Model(bag, bags=nn.EmbeddingBag(IDS, DIM, mode="max", padding_idx=0)), histories),
    "the mean without padding": (
        lambda: Model(bag, bags=nn.EmbeddingBag(IDS, DIM, mode="mean", padding_idx=0)),
        histories,
    ),
    "the sum without padding": (
        lambda: Model(bag, bags=nn.EmbeddingBag(IDS, DIM, mode="sum", padding_idx=0)),
        histories,
    ),
    "computed weights": (lambda: Model(computed_weights, bags=nn.EmbeddingBag(IDS, DIM, mode="sum")), weighted),
    "padding_idx": (lambda: Model(masked_mean, items=nn.Embedding(IDS, DIM, padding_idx=0)), histories),
    "weights shared with the output": (lambda: Model(tied), histories),
    "an output of integers": (lambda: Model(two_outputs), histories),
    "a GRU, its last state by length": (
        lambda: Model(recurrent, recurrent=nn.GRU(DIM, DIM, 2, batch_first=True)),
        histories,
    ),
    "an LSTM": (lambda: Model(recurrent_with_cell, recurrent=nn.LSTM(DIM, DIM, batch_first=True)), histories),
    "a GRU cell, step by step": (lambda: Model(cells, cell=nn.GRUCell(DIM, DIM)), histories),
    "a causal transformer": (lambda: Model(causal, encoder=encoder()), histories),
    "a causal transformer without padding": (lambda: Model(causal_and_padded, encoder=encoder()), histories),
    "rows of a parameter": (lambda: Parameter(of_parameter), histories),
    "a layer with a forward of its own": (lambda: Model(masked_mean, items=Scaled(IDS, DIM)), histories),
    "ids out of scores, of a small table": (lambda: Model(of_scores, concepts=nn.Embedding(5, DIM)), histories),
    "a loss beside the score": (lambda: Model(with_loss), histories),
    "squeeze() of a batch of one row": (lambda: Model(squeezed), histories),
    "ids times a number": (lambda: Model(multiplied), columns),
    "DataParallel": (lambda: nn.DataParallel(Model(masked_mean)), histories),
}
