"""Simulates a GPU for tests: the calls of `serving.gpu.driver`, run on the processor at any time that streams allow.

    gpus = SimulatedGpus(schedule="random", seed=7)
    driver = gpus.driver(0)
    ...                 # the code under test
    driver.finish()     # runs what is left, and raises the first mistake, even one whose error was swallowed

Correct programs compute what a GPU would, whatever the schedule. Wrong ones fail, mostly at the call that is wrong,
whatever the schedule:

- Two operations that touch the same bytes, one of them writing, without stream order or events between them: RaceError
  when the second is put on its stream (`ordering`). The same for graphs of one pool.
- The host writes to pinned memory that a copy still reads: RaceError. It reads what a copy still writes: it sees bytes
  0xFF (NaN, or -1), until the copy is known to be complete. It writes there: RaceError (`host_view`).
- A buffer or graph that is dropped while an operation that uses it is not known to be complete, or that a graph uses
  that is launched later: LifetimeError.
- Work that changes what it only reads, or does not write what it declares: RaceError, or bytes 0xFF (`steps`). With
  strict=True, work that reads or changes anything on the device that it does not name.
- A kernel that would access memory that its call does not name, through whatever list or table (`kernel_memory`).
- Everything else that the protocol forbids: MisuseError.

Kernels of cuda/ run unchanged, compiled for the host (`kernels`), one after the other: it does not try the concurrent
accesses to shared buffers that the protocol of publish.cuh allows.

It cannot detect: a host that writes the bytes that were there already; objects other than tensors, lists, tuples,
dicts and functions that a work closure holds (they keep their buffers alive, as no real graph does); accesses to
tensors that are no buffers; a missing handshake between host threads where timing happens to make up for it
(threads="apart" detects it, but accepts no handshake that is not an event).
"""

from tests.simulated_gpu.driver import SimulatedDriver
from tests.simulated_gpu.gpus import SimulatedGpus
from tests.simulated_gpu.mistakes import AssemblyError, LifetimeError, MisuseError, RaceError
from tests.simulated_gpu.trace import Executed, overlap

__all__ = [
    "AssemblyError",
    "Executed",
    "LifetimeError",
    "MisuseError",
    "RaceError",
    "SimulatedDriver",
    "SimulatedGpus",
    "overlap",
]
