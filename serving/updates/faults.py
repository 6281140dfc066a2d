"""Recognises faults of the machine: no reason to refuse what was being read or computed at that moment."""

from __future__ import annotations

from storage.errors import StoreError, Unavailable

# Texts with which Python, torch and the C++ library report that no threads or no memory are left.
_TEXTS = (
    "can't start new thread",
    "can't allocate memory",
    "Cannot allocate memory",
    "not enough memory",
    "bad_alloc",
    "Resource temporarily unavailable",
)
_KINDS = (Unavailable, StoreError, OSError, MemoryError, ImportError)
_MAX_CAUSES = 16


def is_machine_fault(error: BaseException | None) -> bool:
    """Returns whether an error, or one that it was raised for, says nothing about the content of a version or delta.

    Then it is tried again. For any other error the content is at fault, or this program.
    """
    for _ in range(_MAX_CAUSES):
        if error is None:
            return False
        if isinstance(error, _KINDS):
            return True
        if isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False
