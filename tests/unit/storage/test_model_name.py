"""A model's name is a plain folder name, wherever it comes in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from storage.errors import ConfigError
from storage.specs import check_model_name

BAD = ["", ".", "..", "../escaped", "a/b", "/absolute", ".hidden", "-flag", "a\\b", "a b", "a\n", "x" * 129]


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_is_no_plain_folder_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="model name"):
        check_model_name(name)


@pytest.mark.parametrize("name", ["movielens", "ctr_2.1", "A-b", "_x", "7"])
def test_ordinary_names_pass(name: str) -> None:
    assert check_model_name(name) == name


@pytest.mark.parametrize("name", ["../escaped", "bad/name", ""])
def test_publishing_writes_nothing_outside_the_repository(name: str, tmp_path: Path) -> None:
    from trainer import publish

    repository = tmp_path / "repository"
    with pytest.raises(ConfigError, match="model name"):
        publish(torch.nn.Linear(2, 1), {"x": torch.ones(2, 2)}, repository, name=name)
    assert list(tmp_path.iterdir()) == []
