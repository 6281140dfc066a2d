"""Loads a plain torch module by FILE.py:FUNCTION, for commands that publish it."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from storage.errors import ConfigError
from storage.features.strict_model import did_you_mean

if TYPE_CHECKING:
    from torch import nn

#: What the third value of FUNCTION may hold: arguments of `emberline.publish`.
OPTIONS = ("spec", "max_batch_size", "golden_requests", "tolerance", "metadata", "row_types")
_EXPECTED = "expected (module, sample_batch) or (module, sample_batch, options)"


@dataclass(frozen=True)
class PlainModule:
    """A module and the arguments with which it is published."""

    module: nn.Module
    sample: object
    options: Mapping[str, Any] = field(default_factory=dict)


def is_function(text: str) -> bool:
    """Returns whether a text is FILE.py:FUNCTION, and not the path of something."""
    file, separator, function = text.rpartition(":")
    return bool(separator) and file.endswith(".py") and bool(function) and not Path(text).exists()


def load_plain_module(text: str, during_call: AbstractContextManager[object] | None = None) -> PlainModule:
    """Runs FILE.py and calls its FUNCTION without arguments.

    Modules beside the file can be imported by it. during_call: entered around the call of FUNCTION. Raises ConfigError
    that says what failed, with the lines of the file.
    """
    file, _, name = text.rpartition(":")
    path = Path(file).resolve()
    if not path.is_file():
        raise ConfigError(f"{text}: there is no file {file}", field="NEW")
    function = _function(_run(path, text), name, text)
    with during_call or nullcontext():
        returned = _calling(function, text, path)
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        raise ConfigError(f"{text}: it returned {_described(returned)}, {_EXPECTED}", field="NEW")
    from torch import nn

    module, sample, options = (*returned, {})[:3]
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{text}: the first value is {_described(module)}, expected a torch.nn.Module", field="NEW")
    return PlainModule(module, sample, _options(options, text))


def _options(options: object, text: str) -> dict[str, Any]:
    if not isinstance(options, Mapping):
        raise ConfigError(f"{text}: the third value is {_described(options)}, expected a dict of options", field="NEW")
    for key in options:
        if key not in OPTIONS:
            hint = did_you_mean(str(key), OPTIONS) or f"; there are {', '.join(OPTIONS)}"
            raise ConfigError(f"{text}: there is no option {key!r}{hint}", field=f"NEW.{key}")
    taken = dict(options)
    if isinstance(taken.get("spec"), Mapping):
        from storage.features import FeatureSpec

        taken["spec"] = FeatureSpec.parse(taken["spec"])
    return taken


def _run(path: Path, text: str) -> ModuleType:
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # As Python does for a file that is run: what lies beside it is found, and classes can be pickled by their module.
    sys.path.insert(0, str(path.parent))
    sys.modules[name] = module

    def run() -> None:
        spec.loader.exec_module(module)  # type: ignore[union-attr]

    _calling(run, text, path)
    return module


def _function(module: ModuleType, name: str, text: str) -> Callable[[], object]:
    own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    found = getattr(module, name, None)
    if not callable(found):
        raise ConfigError(f"{text}: the file has no function {name!r}{did_you_mean(name, own)}", field="NEW")
    needed = [
        each.name
        for each in inspect.signature(found).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if needed:
        raise ConfigError(f"{text}: it is called without arguments, and asks for {', '.join(needed)}", field="NEW")
    return found  # type: ignore[no-any-return]


def _calling(function: Callable[[], object], text: str, path: Path) -> object:
    from trainer.models.own_code import explained

    try:
        return function()
    except Exception as error:
        raise ConfigError(f"{text}: it failed: {explained(error, path.stem)}", field="NEW") from error


def _described(value: object) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a value of type {type(value).__name__}"
