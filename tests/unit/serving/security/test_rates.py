"""Token buckets, on a clock of the test's."""

from __future__ import annotations

import time

import pytest

from serving.errors import RateLimited
from serving.security.rates import Rates, client_of


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def granted(rates: Rates, client: str, rate: float, times: int) -> int:
    count = 0
    for _ in range(times):
        try:
            rates.take(client, rate)
            count += 1
        except RateLimited:
            pass
    return count


def test_a_second_at_once_then_as_the_rate_says(clock: Clock) -> None:
    rates = Rates()
    assert granted(rates, "a", 10, 100) == 10
    clock.now += 0.5
    assert granted(rates, "a", 10, 100) == 5
    clock.now += 3600
    assert granted(rates, "a", 10, 100) == 10
    assert granted(rates, "b", 10, 100) == 10


def test_a_slow_rate_says_when_to_come_back(clock: Clock) -> None:
    rates = Rates()
    rates.take("a", 0.1)
    with pytest.raises(RateLimited, match=r"over 0\.1 requests a second; try again in 10 s") as refused:
        rates.take("a", 0.1)
    assert refused.value.retry_after_s == 10
    clock.now += 9.5
    with pytest.raises(RateLimited):
        rates.take("a", 0.1)
    clock.now += 0.5
    rates.take("a", 0.1)


def test_clients_are_remembered_within_a_bound_and_the_busy_ones_stay(clock: Clock) -> None:
    rates = Rates(max_clients=10)
    for number in range(1000):
        granted(rates, "busy", 2, 1)
        granted(rates, f"passing {number}", 2, 1)
    assert rates.native.clients == 10
    assert granted(rates, "busy", 2, 5) == 0


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
        ("not:an:address", "not:an:address"),
    ],
)
def test_an_ipv6_network_is_one_client(address: str, client: str) -> None:
    assert client_of(address) == client
