"""The named steps of an update, in the order in which they happen. A crash after any of them must lose nothing."""

from __future__ import annotations

from collections.abc import Callable

STEPS = (
    "found",  # a version or delta is to be taken
    "verified",  # every byte of it is what was published
    "linked",  # its files lie in the store too, so that the repository may lose them
    "staged",  # its rows are in memory or on SSD; no request sees them
    "validated",  # the golden requests give the trainer's scores, and the live guard has no objection
    "recorded",  # the state file names it as the served snapshot
    "switched",  # requests see it
    "merge_file",  # the oldest overlay is written as sorted files
    "merge_ingest",  # the files are part of SSD, in one step: "at" has moved
    "merge_dram",  # the DRAM copy has the same rows
    "merge_drop",  # the overlay is gone
    "collected",  # links and stores that nothing needs any more are deleted
)

#: The steps after the first until requests see the update.
TAKING = STEPS[1 : STEPS.index("switched") + 1]

OnStep = Callable[[str, str], None]


def check_step(step: str) -> str:
    """Returns the step. Raises ValueError for a name that is not in STEPS: a bug of this program."""
    if step not in STEPS:
        raise ValueError(f"{step!r} is no step of an update; they are {', '.join(STEPS)}")
    return step
