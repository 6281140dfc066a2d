"""Modules that pack sequences are served as torch computes them, for every length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from storage.errors import InvalidInput, Unsupported
from tests.integration.trainer.idioms import DIM, IDS, Model
from tests.integration.trainer.test_idioms import check_served
from trainer import publish

# Each step is operators of its own in the graph, so a test takes as long as there are steps.
LENGTH = 4


def of_all_lengths(rows: int) -> tuple[Tensor, ...]:
    """Draws histories (B, L) padded with 0 at the end: of the lengths L, 1, 2 and so on."""
    lengths = (torch.arange(rows) + LENGTH - 1) % LENGTH + 1
    return (torch.where(torch.arange(LENGTH) < lengths[:, None], torch.randint(1, IDS, (rows, LENGTH)), 0),)


def with_lengths(rows: int) -> tuple[Tensor, ...]:
    (history,) = of_all_lengths(rows)
    return history, (history != 0).sum(1).to(torch.int32)


def last_state(model: Any, history: Tensor) -> Tensor:
    lengths = (history != 0).sum(1).cpu()
    packed = pack_padded_sequence(model.items(history), lengths, batch_first=True, enforce_sorted=False)
    _, state = model.recurrent(packed)
    return model.head(state[-1])


def outputs_and_state(model: Any, history: Tensor, lengths: Tensor) -> Tensor:
    """Attends with the last state over the outputs, as NARM does, which are padded again."""
    rows = model.items(history)
    packed = pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)
    packed = PackedSequence(torch.tanh(packed.data), *packed[1:])
    found, state = model.recurrent(packed)
    outputs, known = pad_packed_sequence(found, batch_first=True, total_length=LENGTH)
    weights = torch.exp(outputs @ state.permute(1, 2, 0).mean(2, keepdim=True)) * (history != 0).unsqueeze(2)
    pooled = (weights * outputs).sum(1) / weights.sum(1)
    return model.head(pooled) + known.unsqueeze(1) + (outputs - 1).sum((1, 2)).unsqueeze(1)


def both_directions(model: Any, history: Tensor) -> Tensor:
    lengths = (history != 0).sum(1)
    packed = pack_padded_sequence(model.items(history).transpose(0, 1), lengths.cpu(), enforce_sorted=False)
    start = torch.ones(4, history.shape[0], 2) / 4
    found, (state, cell) = model.recurrent(packed, (start, -start))
    outputs, _ = pad_packed_sequence(found, padding_value=-0.5, total_length=LENGTH + 1)
    return model.head(outputs.sum(0) + torch.cat([state[2], cell[3]], 1) + torch.cat([cell[0], state[1]], 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "draw"),
    [
        (Model(last_state, recurrent=nn.GRU(DIM, DIM, batch_first=True)), of_all_lengths),
        (Model(last_state, recurrent=nn.RNN(DIM, DIM, nonlinearity="relu", bias=False)), of_all_lengths),
        (Model(outputs_and_state, recurrent=nn.GRU(DIM, DIM, num_layers=2)), with_lengths),
        (Model(both_directions, recurrent=nn.LSTM(DIM, 2, num_layers=2, bidirectional=True)), of_all_lengths),
    ],
    ids=["state of a GRU", "plain without bias", "two layers", "LSTM of two directions"],
)
def test_packed_sequences_are_served_as_torch_computes_them(module: Model, draw: Any, tmp_path: Path) -> None:
    torch.manual_seed(6)
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.5)
    check_served(module.eval(), draw, tmp_path)


def steps_by_hand(model: Any, history: Tensor) -> Tensor:
    packed = pack_padded_sequence(model.items(history), (history != 0).sum(1), True, False)
    state, begin = torch.zeros(int(packed.batch_sizes[0]), DIM), 0
    for size in packed.batch_sizes.tolist():
        state = torch.cat([model.cell(packed.data[begin : begin + size], state[:size]), state[size:]])
        begin += size
    return model.head(state)


def test_a_loop_over_the_sizes_of_steps_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"batch_sizes of a packed sequence.*loop over the padded rows.*torch.where"):
        publish(Model(steps_by_hand, cell=nn.GRUCell(DIM, DIM)), of_all_lengths(9), tmp_path, name="m")


def test_what_torch_says_of_an_empty_sequence_names_the_sample(tmp_path: Path) -> None:
    module = Model(last_state, recurrent=nn.GRU(DIM, DIM, batch_first=True))
    with pytest.raises(InvalidInput, match=r"sample_batch: the module cannot run on it: .*[Ll]ength"):
        publish(module, (torch.zeros(4, LENGTH, dtype=torch.int64),), tmp_path, name="m")
    assert "forward" not in vars(module.recurrent)
