"""Settings that several ranks do not train are refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage.errors import ConfigError
from trainer.config import TrainConfig, parse_content
from trainer.rank_limits import check_ranks
from trainer.ranks import Ranks

TWO = Ranks(0, 2)
BLOOM = {"type": "bloom", "expected_ids": 1000, "false_rate": 0.01}


@pytest.mark.parametrize(
    ("section", "change", "field"),
    [
        ("training", {"batch_size": 1}, "training.batch_size"),
        ("tables", {"admit_after": 2, "admission": BLOOM}, "tables.items.admission"),
    ],
)
def test_settings_of_one_process(
    config_of: Callable[..., TrainConfig], section: str, change: dict[str, object], field: str
) -> None:
    content = config_of().model_dump(mode="json", exclude_unset=True)
    if section == "training":
        content["training"] |= change
    else:
        content["tables"][1] = {"name": "items", "dim": 8, **change}
    config = parse_content(content)
    check_ranks(config, Ranks())
    with pytest.raises(ConfigError, match=field.replace(".", r"\.")) as caught:
        check_ranks(config, TWO)
    assert caught.value.field == field
