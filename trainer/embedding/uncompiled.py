"""Takes from optimizers of torch what prepares their methods for torch.compile, which compiles none of ours."""

from __future__ import annotations

import inspect
from typing import TypeVar

import torch

_Kind = TypeVar("_Kind", bound=type[torch.optim.Optimizer])
_PREPARED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def uncompiled(kind: _Kind) -> _Kind:
    """Changes a class so that its methods do not load torch's compiler, and returns it.

    The first call of any prepared method would load it, which takes 1.5 s of processor time.
    """
    for name in _PREPARED:
        setattr(kind, name, inspect.unwrap(getattr(kind, name)))
    step = inspect.unwrap(kind.step)
    if step is not kind.step:
        kind.step = torch.no_grad()(step)  # type: ignore[method-assign]
    return kind
