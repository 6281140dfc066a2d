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
from torch.nn.modules import transformer

from storage.checkpoint.traces import release_trace
from storage.errors import Unsupported
from trainer.publishing.dense_half import DenseHalf
from trainer.publishing.tracing import user_place

_TALKS = "torch.fx.experimental.symbolic_shapes"
_PLACE = re.compile(
    r'The following call raised this error:\n\s*File "(?P<file>[^"]+)", line (?P<line>[0-9]+).*\n\s*(.+)'
)


def export_half(half: DenseHalf, tensors: Sequence[Tensor]) -> torch.export.ExportedProgram:
    """Exports the dense half with a dynamic batch. Raises Unsupported with torch's reason when that cannot be done."""
    batch = torch.export.Dim("batch", min=1, max=2**31 - 1)
    with half.cut(), _without_dumps(), _traceable() as lengths, torch.no_grad():
        try:
            program = torch.export.export(
                half, tuple(tensors), dynamic_shapes={"tensors": tuple({0: batch} for _ in tensors)}, strict=False
            )
        except Unsupported:
            raise
        except Exception as error:  # torch raises many kinds here; all mean the same to the caller
            if lengths and "Constraints violated" in str(error):
                raise Unsupported(
                    f"len(x) of a tensor of the batch, at {lengths[0]}, makes its size a constant: write x.shape[0]"
                ) from error
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
def _traceable() -> Iterator[list[str]]:
    """Makes torch's own layers traceable; gives the places where len() of a tensor whose size is open is asked for."""
    own, length = transformer._detect_is_causal_mask, Tensor.__len__
    found: list[str] = []

    def is_causal_mask(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        # The hint may be left out; it compares the values of the mask, which a graph cannot.
        return is_causal is True

    def noted_length(tensor: Tensor) -> int:
        if tensor.dim() and isinstance(tensor.shape[0], torch.SymInt):
            found.append(user_place())
        return int(length(tensor))  # type: ignore[no-untyped-call]

    transformer._detect_is_causal_mask = is_causal_mask
    Tensor.__len__ = noted_length  # type: ignore[method-assign]
    try:
        yield found
    finally:
        transformer._detect_is_causal_mask = own
        Tensor.__len__ = length  # type: ignore[method-assign]


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
