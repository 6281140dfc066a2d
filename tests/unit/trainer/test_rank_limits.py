"""Settings that several ranks do not train are refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage.errors import ConfigError
from trainer.config import TrainConfig
from trainer.rank_limits import check_ranks
from trainer.ranks import Ranks

TWO = Ranks(0, 2)


def test_a_chain_is_for_one_process(config_of: Callable[..., TrainConfig]) -> None:
    config = config_of()
    user = config.features[0].model_copy(update={"fallback": ("mean",)})
    config = config.model_copy(update={"features": (user, *config.features[1:])})
    check_ranks(config, Ranks())
    with pytest.raises(ConfigError, match=r"several ranks do not bring each other rows of a chain yet") as caught:
        check_ranks(config, TWO)
    assert caught.value.field == "features.user.fallback"


def test_a_batch_has_a_row_for_each_rank(config_of: Callable[..., TrainConfig]) -> None:
    config = config_of(batch_size="1")
    check_ranks(config, Ranks())
    with pytest.raises(ConfigError, match=r"training\.batch_size") as caught:
        check_ranks(config, TWO)
    assert caught.value.field == "training.batch_size"
