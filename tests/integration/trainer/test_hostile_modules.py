"""Modules that would be answered otherwise than torch does are followed or refused, whatever the sample shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from storage.errors import ParityError, Unsupported
from tests.integration.trainer.idioms import IDS, LENGTH, Draw, Model
from tests.integration.trainer.test_idioms import check_served
from trainer import publish


def running_sum(model: Any, history: Tensor) -> Tensor:
    return model.head(model.items(history).sum(1)).cumsum(0)


def number_of_first_row(model: Any, history: Tensor) -> Tensor:
    return model.head(model.items(history).sum(1)) * float(history[0, 0])


def value_of_first_row(model: Any, history: Tensor) -> Tensor:
    return model.head(model.items(history).sum(1)) * float(history[0, 0].float())


def one_against_all(model: Any, history: Tensor) -> Tensor:
    rows = model.items(history).sum(1)
    return rows @ rows.t()


def read_by_numpy(model: Any, history: Tensor) -> Tensor:
    return model.head(model.items(torch.from_numpy(history.numpy() % 7)).sum(1))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (running_sum, "differs for some rows when the sample's rows come in reverse order"),
        (number_of_first_row, "the module reads a number out of a tensor of the batch at .*test_hostile_modules.py"),
        (value_of_first_row, "differs for some rows when the sample's rows come in reverse order"),
        (one_against_all, "reverse order|as many values for each row"),
        (read_by_numpy, r"not numpy\(\), tolist\(\) or item\(\)"),
    ],
)
def test_outputs_that_a_row_alone_does_not_give_are_refused(
    function: Callable[..., Tensor], words: str, tmp_path: Path
) -> None:
    history = torch.randint(1, IDS, (13, LENGTH))
    with pytest.raises((ParityError, Unsupported), match=words):
        publish(Model(function), (history,), tmp_path, name="hostile")
    assert not list(tmp_path.rglob("*.json"))


def test_a_sample_as_long_as_its_fields_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="give a sample of another number of rows"):
        publish(
            Model(lambda model, ids: model.head(model.items(ids).sum(0))),
            (torch.randint(0, IDS, (6, 6)),),
            tmp_path,
            name="hostile",
        )


def shifted_in_place(model: Any, history: Tensor) -> Tensor:
    shifted = torch.zeros_like(history)
    shifted[:, 1:] = history[:, :-1]
    shifted[:, 0] = 3
    return model.head((model.items(shifted) * torch.arange(LENGTH).unsqueeze(1)).sum(1))


def column_written(model: Any, history: Tensor) -> Tensor:
    ids = history.clone()
    ids[:, 0].add_(1)
    return model.head(model.items(ids % IDS).sum(1))


def wrapped_around(model: Any, ids: Tensor) -> Tensor:
    return model.head(model.items((ids * 100_000) % IDS).sum(1))


def narrowed(model: Any, ids: Tensor) -> Tensor:
    return model.head(model.items(ids.int() % IDS).sum(1))


def histories(rows: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, IDS, (rows, LENGTH)),)


def of_32_bits(rows: int) -> tuple[Tensor, ...]:
    return (torch.randint(40_000, 50_000, (rows, LENGTH), dtype=torch.int32),)


def of_64_bits(rows: int) -> tuple[Tensor, ...]:
    return (torch.randint(2**40, 2**62, (rows, LENGTH)),)


@pytest.mark.parametrize(
    ("function", "draw"),
    [
        (shifted_in_place, histories),
        (column_written, histories),
        (wrapped_around, of_32_bits),
        (narrowed, of_64_bits),
    ],
)
def test_writes_into_a_part_and_integers_that_wrap_around_are_served(
    function: Callable[..., Tensor], draw: Draw, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    check_served(Model(function).eval(), draw, tmp_path)
