"""The drill of a night names causes where they are, and fails where they are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage.errors import Unavailable
from tests.faults.night.drill import FAULTS, drill
from tests.support.alerts.causes import CAUSES
from tests.support.alerts.prometheus import Prometheus

pytestmark = pytest.mark.slow


def test_a_bad_delta_is_named_in_every_place_and_another_cause_in_none(prometheus: Prometheus) -> None:
    (fault,) = (each for each in FAULTS if each.name == "bad-delta")
    outcome = drill(fault, prometheus)
    assert not outcome.missing
    other = drill(replace(fault, named=dict.fromkeys(fault.named, "the moon")), prometheus)
    assert other.missing == list(fault.named)


@pytest.mark.long
@pytest.mark.parametrize("name", [fault.name for fault in FAULTS if fault.name != "bad-delta"])
def test_each_fault_of_the_drill_is_named(name: str, prometheus: Prometheus) -> None:
    (fault,) = (each for each in FAULTS if each.name == name)
    try:
        assert drill(fault, prometheus).missing == []
    except Unavailable as error:
        pytest.skip(f"no small file system can be mounted here: {error}")


def test_every_fault_has_an_alert_and_a_page_that_names_its_cause() -> None:
    assert {fault.alert for fault in FAULTS} <= CAUSES.keys()
    assert all({"alert", "page"} <= fault.named.keys() for fault in FAULTS)
