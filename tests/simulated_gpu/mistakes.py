"""Errors for mistakes of a program with a simulated GPU. They are not in the project's exception tree.

Production code must not handle these.

MisuseError
├── RaceError      two accesses to the same bytes that nothing orders
├── LifetimeError  memory or a graph went while the device still needed it
└── AssemblyError  packed inputs, or the table about them, make no sense
"""

from __future__ import annotations


class MisuseError(AssertionError):
    """The protocol of the driver does not allow the call."""


class RaceError(MisuseError):
    """Two accesses to the same bytes, at least one a write, are not ordered."""


class LifetimeError(MisuseError):
    """A buffer or a graph was dropped while the device still needed it."""


class AssemblyError(MisuseError):
    """The kernel that unpacks inputs would have read or written outside of its buffers."""
