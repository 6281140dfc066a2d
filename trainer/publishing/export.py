"""Runs torch.export on the dense half and silences what torch prints when it fails."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode

from storage.checkpoint.traces import release_trace
from storage.errors import Unsupported
from trainer.publishing.dense_half import DenseHalf
from trainer.publishing.tracing import user_place

# Held while what torch's own layers do is patched.
_PATCHED = threading.Lock()
_TALKS = "torch.fx.experimental.symbolic_shapes"
_PLACE = re.compile(
    r'The following call raised this error:\n\s*File "(?P<file>[^"]+)", line (?P<line>[0-9]+).*\n\s*(.+)'
)


def export_half(half: DenseHalf, tensors: Sequence[Tensor]) -> torch.export.ExportedProgram:
    """Exports the dense half with a dynamic batch. Raises Unsupported with torch's reason when that cannot be done."""
    with half.cut(), _without_dumps(), _traceable(), torch.no_grad():
        try:
            program = _exported(half, tensors)
        except Unsupported:
            raise
        except Exception as error:  # torch raises many kinds here; all mean the same to the caller
            places = _places_of_lengths(half, tensors) if "Constraints violated" in str(error) else []
            if places:
                raise Unsupported(
                    f"len(x) of a tensor of the batch, at {places[0]}, makes its size a constant: write x.shape[0]"
                ) from error
            raise Unsupported(
                f"torch.export cannot take the module without its embedding layers: {_reason(error)}. Its graph has to "
                "be the same for every batch size and every value: no `if`, `.item()` or shape that depends on values"
            ) from error
    release_trace(program.graph)
    return program


def _exported(half: DenseHalf, tensors: Sequence[Tensor]) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=2**31 - 1)
    shapes = {"tensors": tuple({0: batch} for _ in tensors)}
    return torch.export.export(half, tuple(tensors), dynamic_shapes=shapes, strict=False)


def _places_of_lengths(half: DenseHalf, tensors: Sequence[Tensor]) -> list[str]:
    """Exports once more, watched: a mode in the first export would be the place that torch names in its errors."""
    watched = _Lengths()
    with contextlib.suppress(Exception), watched:
        _exported(half, tensors)
    return watched.places


def _reason(error: Exception) -> str:
    """Returns the first line of torch's message, and the line of the user's code that it is about."""
    text = str(error).strip()
    first = (text.splitlines() or [type(error).__name__])[0].rstrip(". ")
    place = _PLACE.search(text)
    return f"{first}, at {place['file']}:{place['line']} ({place[3].strip()})" if place else first


class _Lengths(TorchFunctionMode):
    """Notes the places where len() of a tensor whose size is open is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__len__ and args[0].dim() and isinstance(args[0].shape[0], torch.SymInt):
            self.places.append(user_place())
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _traceable() -> Iterator[None]:
    """Makes torch's own layers traceable in this thread; another export waits until the block ends."""
    with _PATCHED:
        own, thread = transformer._detect_is_causal_mask, threading.get_ident()

        def is_causal_mask(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
            if threading.get_ident() != thread:
                return own(mask, is_causal, size)
            # The hint may be left out; it compares the values of the mask, which a graph cannot.
            return is_causal is True

        transformer._detect_is_causal_mask = is_causal_mask
        try:
            yield
        finally:
            transformer._detect_is_causal_mask = own


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
