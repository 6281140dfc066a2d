"""Runs a command without the system calls that container engines deny: `python seccomp.py COMMAND ...`.

Denied is what containerd's default profile denies of what a server, torch or RocksDB may try, above all io_uring. Other
calls of that profile are left out. Needs no package and no privileges.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

# Numbers of x86-64.
DENIED = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "mbind": 237,
    "set_mempolicy": 238,
    "get_mempolicy": 239,
    "move_pages": 279,
    "perf_event_open": 298,
    "userfaultfd": 323,
    "bpf": 321,
    "unshare": 272,
    "setns": 308,
    "mount": 165,
    "keyctl": 250,
}
_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def deny(numbers: list[int]) -> None:
    """Lets these system calls of this process and its children fail with EPERM from now on."""
    lines = [struct.pack("HBBI", _LOAD, 0, 0, 0)]  # the number of the call
    for number in numbers:
        lines.append(struct.pack("HBBI", _EQUAL, 0, 1, number))
        lines.append(struct.pack("HBBI", _RETURN, 0, 0, _ERRNO | errno.EPERM))
    lines.append(struct.pack("HBBI", _RETURN, 0, 0, _ALLOW))
    program = _Program(len(lines), b"".join(lines))
    libc = ctypes.CDLL(None, use_errno=True)
    for option, argument, pointer in ((_NO_NEW_PRIVS, 1, None), (_SECCOMP, _FILTER, ctypes.byref(program))):
        if libc.prctl(option, argument, pointer or 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    deny(list(DENIED.values()))
    os.execvp(sys.argv[1], sys.argv[1:])
