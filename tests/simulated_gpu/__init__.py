"""A GPU for tests: the calls of `serving.gpu.driver`, computed on the processor, at any time that streams allow.

    gpus = SimulatedGpus(schedule="random", seed=7)
    driver = gpus.driver(0)
    ...                 # the code under test
    driver.finish()     # runs what is left, and raises the first mistake that was made, whoever swallowed it

Right programs compute what a GPU would, whatever the schedule. Wrong ones fail, and mostly at the call that is wrong,
whatever the schedule:

- Two operations that touch the same bytes, one of them writing, without stream order or events between them: RaceError
  when the second is put on its stream (`ordering`). The same for graphs of one pool.
- The host writes to pinned memory that a copy still reads: RaceError. It reads what a copy still writes: it sees bytes
  0xFF (NaN, or -1), until the copy is known to be complete. It writes there: RaceError (`host_view`).
- A buffer or graph that is dropped while an operation that uses it is not known to be complete, or that a graph uses
  that is launched later: LifetimeError.
- Work that changes what it only reads, or does not write what it says: RaceError, or bytes 0xFF (`steps`). With
  strict=True, work that looks at or changes anything on the device that it does not name.
- A kernel that would go to memory that its call does not name, through whatever list or table (`kernel_memory`).
- Everything else that the protocol forbids: MisuseError.

Kernels of cuda/ run as they are, compiled for the host (`kernels`), one after the other: what the protocol of
publish.cuh allows to happen at once in buffers that calls share, it does not try.

What it cannot see: a host that writes the bytes that were there already; objects other than tensors, lists, tuples,
dicts and functions that a work closure holds (they keep their buffers alive, as no real graph does); accesses to
tensors that are no buffers; a handshake between host threads that is missing where the clock of the wall makes it good
(threads="apart" sees it, but takes no handshake for good that is not an event).
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
