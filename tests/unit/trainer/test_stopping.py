"""Early stopping decides by the evaluations alone; a schedule goes on where a restored optimizer begins."""

from __future__ import annotations

import pytest
import torch

from storage.errors import ConfigError
from tests.unit.trainer.conftest import clicks_config
from trainer.optimizer_config import ScheduleConfig
from trainer.optimizers import Schedule
from trainer.report import EpochReport
from trainer.stopping import Verdict, judge


def epochs(*values: float | None) -> list[EpochReport]:
    """Returns evaluations with this AUC, whose log-loss is the rest to 1."""
    return [
        EpochReport(number, 0.5, metrics={"score": {"auc": value, "log_loss": None if value is None else 1 - value}})
        for number, value in enumerate(values, start=1)
    ]


@pytest.mark.parametrize("metric", ["auc", "log_loss"])
@pytest.mark.parametrize(
    ("values", "min_delta", "verdict"),
    [
        ((), 0.0, Verdict(0, 0, False)),
        ((0.5,), 0.0, Verdict(1, 0, False)),
        ((0.5, 0.6, 0.7), 0.0, Verdict(3, 0, False)),
        ((0.5, 0.7, 0.6), 0.0, Verdict(2, 1, False)),
        ((0.5, 0.7, 0.6, 0.7), 0.0, Verdict(2, 2, True)),
        ((0.5, 0.7, 0.6, 0.75), 0.0, Verdict(4, 0, False)),
        ((0.5, 0.54, 0.56), 0.05, Verdict(3, 0, False)),
        ((0.5, 0.54, 0.54), 0.05, Verdict(1, 2, True)),
        ((0.5, None, None, None, 0.6), 0.0, Verdict(5, 0, False)),
        ((None, None, None), 0.0, Verdict(0, 0, False)),
    ],
)
def test_the_best_epoch_and_the_end(
    metric: str, values: tuple[float | None, ...], min_delta: float, verdict: Verdict
) -> None:
    config = clicks_config("dlrm", early_stopping=f"{{metric: {metric}, min_delta: {min_delta}}}")
    assert judge(config, epochs(*values)) == verdict


def test_without_a_configuration_no_epoch_is_the_best() -> None:
    assert judge(clicks_config("dlrm"), epochs(0.5, 0.4, 0.3, 0.2)) == Verdict()


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ("{metrik: auc}", "training.early_stopping.metrik", "did you mean 'metric'"),
        ("{metric: acu}", "", r"training.early_stopping.metric: .* does not measure 'acu'; did you mean 'auc'"),
        ("{task: order}", "", "training.early_stopping.task: there is no task 'order'"),
        ("{patience: 0}", "training.early_stopping.patience", "greater than or equal to 1"),
        ("{patience: 1}, eval_every: 0", "training", "early_stopping needs evaluations on the way"),
    ],
)
def test_a_wrong_configuration_is_refused(given: str, field: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        clicks_config("dlrm", early_stopping=given)
    assert caught.value.field == field


def test_a_schedule_sets_the_rates_of_an_optimizer_whose_state_was_loaded() -> None:
    optimizer = torch.optim.Adam([torch.zeros(1)], lr=0.5)
    schedule = Schedule(ScheduleConfig(type="linear", steps=10, end=0.0), optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    schedule.set(4)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * 0.6)
