"""torch's settings of fp32 products are one model's while it dispatches, and what they were afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from serving.gpu.matmul_precision import matmul_precision

_CUDNN: Any = torch.backends.cudnn  # torch adds `conv` when it is imported
KINDS: tuple[Any, ...] = (torch.backends.cuda.matmul, _CUDNN.conv, _CUDNN.rnn)
LONGEST_WAIT_S = 30


def settings() -> list[str]:
    return [kind.fp32_precision for kind in KINDS]


@pytest.fixture(autouse=True)
def left_as_found() -> Iterator[None]:
    found = settings()
    yield
    assert settings() == found


@pytest.mark.parametrize(("tf32", "said"), [(True, "tf32"), (False, "ieee")])
def test_it_sets_and_restores(tf32: bool, said: str) -> None:
    found = settings()
    with matmul_precision(tf32):
        assert settings() == [said] * 3
    assert settings() == found
    with pytest.raises(ValueError, match="a bug"), matmul_precision(tf32):
        raise ValueError("a bug")
    assert settings() == found


def test_it_restores_what_somebody_set() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with matmul_precision(False):
            assert settings() == ["ieee"] * 3
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"


def test_the_same_thread_may_ask_again() -> None:
    with matmul_precision(True), matmul_precision(True):
        assert settings() == ["tf32"] * 3
    with matmul_precision(True), pytest.raises(AssertionError, match="both"), matmul_precision(False):
        pass


def test_the_same_setting_is_shared_and_another_one_waits_its_turn() -> None:
    both_in = threading.Barrier(3)
    leave = threading.Event()
    order: list[str] = []

    def share() -> None:
        with matmul_precision(True):
            both_in.wait(LONGEST_WAIT_S)
            assert leave.wait(LONGEST_WAIT_S)
            order.append("tf32")

    def other() -> None:
        with matmul_precision(False):
            assert settings() == ["ieee"] * 3
            order.append("ieee")

    threads = [threading.Thread(target=share) for _ in range(2)]
    for thread in threads:
        thread.start()
    both_in.wait(LONGEST_WAIT_S)  # both are inside at once
    late = threading.Thread(target=other)
    late.start()
    assert settings() == ["tf32"] * 3
    leave.set()
    for thread in [*threads, late]:
        thread.join(LONGEST_WAIT_S)
    assert order == ["tf32", "tf32", "ieee"]


def test_many_threads_always_find_their_own_setting() -> None:
    wrong: list[list[str]] = []

    def dispatch(tf32: bool) -> None:
        for _ in range(300):
            with matmul_precision(tf32):
                if settings() != ["tf32" if tf32 else "ieee"] * 3:
                    wrong.append(settings())

    threads = [threading.Thread(target=dispatch, args=(number % 2 == 0,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST_WAIT_S)
        assert not thread.is_alive()
    assert not wrong
