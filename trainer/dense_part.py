"""Computes the dense part of a step in a precision, compiled by torch if that is asked for.

Tables, optimizers and losses are in float32 whatever the precision is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from storage.errors import ConfigError
from trainer.config import TrainingConfig
from trainer.models import RankingModel

_LOWERED = {"bf16": torch.bfloat16, "fp16": torch.float16}
_FIELD = "training.compile"


class DensePart:
    """Runs the method of a model that makes values of looked-up rows, as `training.precision` and `compile` say.

    It is in place while a step learns; evaluation and publishing call the model as it is. Raises ConfigError when there
    is no compiler.
    """

    def __init__(self, model: RankingModel, config: TrainingConfig, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._dtype = _LOWERED.get(config.precision)
        self._compiles = config.compile
        self._run: Callable[[Any], Any] = getattr(model, model.dense_method)
        if self._compiles:
            with _quiet_compiler():
                _check_compiler(device)
                self._run = torch.compile(self._run)
            # Its native calls are no operators of torch; the graph begins behind them.
            self._lookups = torch.compiler.disable(model.features.forward)  # type: ignore[no-untyped-call]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Puts it in the place of the model's own method for the block, which may raise ConfigError of the compiler."""
        if self._dtype is None and not self._compiles:
            yield
            return
        with _replaced(self._model, self._model.dense_method, self._values):
            if not self._compiles:
                yield
                return
            with _replaced(self._model.features, "forward", self._lookups):
                yield

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raises ConfigError for what torch's compiler raises in the block, forward or backward."""
        if not self._compiles:
            yield
            return
        from torch._dynamo.exc import TorchDynamoException  # it takes seconds to import

        try:
            with _quiet_compiler():
                yield
        except TorchDynamoException as error:
            said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise ConfigError(
                f"{_FIELD}: torch could not compile the dense part: {said[:300]}; train with compile: false, or see "
                "the whole message with TORCHDYNAMO_VERBOSE=1",
                field=_FIELD,
            ) from error

    def _values(self, inputs: Any) -> Any:
        lowered: AbstractContextManager[Any] = nullcontext()
        if self._dtype is not None:
            lowered = torch.autocast(self._device.type, dtype=self._dtype)
        with lowered:
            found = self._run(inputs)
        if isinstance(found, Tensor):
            return _float32(found)
        return tuple(_float32(each) for each in found) if isinstance(found, tuple) else found


@contextmanager
def _quiet_compiler() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch")  # it warns about its own parts
        yield


@contextmanager
def _replaced(module: nn.Module, name: str, method: Callable[..., Any]) -> Iterator[None]:
    own, missing = vars(module), object()
    before = own.get(name, missing)
    own[name] = method
    try:
        yield
    finally:
        if before is missing:
            del own[name]
        else:
            own[name] = before


def _float32(values: Tensor) -> Tensor:
    return values.float() if values.dtype in _LOWERED.values() else values


def _check_compiler(device: torch.device) -> None:
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            raise ConfigError(
                f"{_FIELD}: torch compiles for a GPU with Triton, which is missing or does not know this GPU; install "
                "it (`pip install triton`), or train with compile: false",
                field=_FIELD,
            )
        return
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except RuntimeError as error:
        raise ConfigError(
            f"{_FIELD}: torch compiles with a C++ compiler, and found none ({str(error).splitlines()[0]}); install "
            "g++, name one with CXX, or train with compile: false",
            field=_FIELD,
        ) from None
