"""Tests which errors concern a version or a delta, and which only the machine."""

from __future__ import annotations

import errno
import threading

import pytest

from serving.updates.faults import is_machine_fault
from storage.errors import (
    CheckpointError,
    DeviceOutOfMemory,
    GuardError,
    IntegrityError,
    LineageError,
    ParityError,
    ReadError,
    StoreError,
    UnsafeArtifact,
)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "Input/output error"),
        MemoryError(),
        ImportError("no file descriptor to read the module"),
        ReadError("x"),
        StoreError("x"),
        DeviceOutOfMemory("x"),
        RuntimeError("can't start new thread"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_fault_of_the_machine_is_one_also_behind_another_error(error: Exception) -> None:
    assert is_machine_fault(error)
    outer = CheckpointError("dense.pt2: torch cannot load the graph")
    outer.__cause__ = error
    assert is_machine_fault(outer)


@pytest.mark.parametrize(
    "error",
    [
        *(IntegrityError("x"), UnsafeArtifact("x"), ParityError("x"), LineageError("x"), GuardError("x")),
        *(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("x"), None),
    ],
)
def test_a_judgement_of_the_content_is_none(error: Exception | None) -> None:
    assert not is_machine_fault(error)


def test_an_error_that_hides_its_context_is_judged_by_itself() -> None:
    error = IntegrityError("a file is missing")
    error.__context__ = FileNotFoundError()
    assert is_machine_fault(error)
    error.__suppress_context__ = True  # The error was raised "from None".
    assert not is_machine_fault(error)


def test_the_text_for_no_thread_is_still_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks for a stack of an exabyte, which no thread can have."""
    before = threading.stack_size()
    threading.stack_size(1 << 60)
    try:
        with pytest.raises(RuntimeError) as caught:
            threading.Thread(target=int).start()
    finally:
        threading.stack_size(before)
    assert is_machine_fault(caught.value)
