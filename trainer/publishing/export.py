"""Runs torch.export on the dense half and silences what torch prints when it fails."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from storage.checkpoint.traces import release_trace
from storage.errors import Unsupported
from trainer.publishing.dense_half import DenseHalf

_TALKS = "torch.fx.experimental.symbolic_shapes"
_PLACE = re.compile(
    r'The following call raised this error:\n\s*File "(?P<file>[^"]+)", line (?P<line>[0-9]+).*\n\s*(.+)'
)


def export_half(half: DenseHalf, tensors: Sequence[Tensor]) -> torch.export.ExportedProgram:
    """Exports the dense half with a dynamic batch. Raises Unsupported with torch's reason when that cannot be done."""
    batch = torch.export.Dim("batch", min=1, max=2**31 - 1)
    with half.cut(), _without_dumps(), torch.no_grad():
        try:
            program = torch.export.export(
                half, tuple(tensors), dynamic_shapes={"tensors": tuple({0: batch} for _ in tensors)}, strict=False
            )
        except Unsupported:
            raise
        except Exception as error:  # torch raises many kinds here; all mean the same to the caller
            raise Unsupported(
                f"torch.export cannot take the module without its embedding layers: {_reason(error)}. Its graph has to "
                "be the same for every batch size and every value: no `if`, `.item()` or shape that depends on values"
            ) from error
    release_trace(program.graph)
    return program


def _reason(error: Exception) -> str:
    """Returns the first line of torch's message, and the line of the user's code that it is about."""
    text = str(error).strip()
    first = (text.splitlines() or [type(error).__name__])[0].rstrip(". ")
    place = _PLACE.search(text)
    return f"{first}, at {place['file']}:{place['line']} ({place[3].strip()})" if place else first


@contextlib.contextmanager
def _without_dumps() -> Iterator[None]:
    """Keeps torch's output from the terminal: warnings, and the graph printed to standard error beside an error.

    What a module itself prints there is passed on when the export succeeds.
    """
    logger = logging.getLogger(_TALKS)
    said = io.StringIO()
    logger.addFilter(_nothing)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(said):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.removeFilter(_nothing)
    sys.stderr.write(said.getvalue())


def _nothing(_: logging.LogRecord) -> bool:
    return False
