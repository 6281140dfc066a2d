"""Models of one's own, which a configuration names as MODULE:CLASS."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from storage.errors import ConfigError
from storage.features.strict_model import did_you_mean
from trainer.model_config import OwnModelConfig
from trainer.models.base import FeatureEmbeddings, RankingModel
from trainer.models.own_code import explained


def own_model(config: OwnModelConfig, features: FeatureEmbeddings) -> RankingModel:
    """Imports the class and makes it. Raises ConfigError that says which of both failed, and of what."""
    made = _class(config.type)
    _check_arguments(made, config, features)
    try:
        model = made(features, **config.arguments)
    except ConfigError:
        raise
    except Exception as error:
        said = explained(error, config.type.partition(":")[0])
        raise ConfigError(f"model: {config.type} could not be made: {said}", field="model") from error
    if getattr(model, "features", None) is not features:
        raise ConfigError(
            f"model: {config.type} does not keep its features; call super().__init__(features) first in its __init__",
            field="model.type",
        )
    return model


def _class(name: str) -> type[RankingModel]:
    module_name, _, class_name = name.partition(":")
    module = _module(module_name)
    classes = [key for key, value in vars(module).items() if isinstance(value, type)]
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise ConfigError(
            f"model.type: the module {module_name!r} ({_place(module)}) has no class {class_name!r}"
            f"{did_you_mean(class_name, classes)}",
            field="model.type",
        )
    if not issubclass(found, RankingModel):
        raise ConfigError(
            f"model.type: {name} is not a trainer.RankingModel; derive the class from it and give it "
            "`logits(self, inputs)`",
            field="model.type",
        )
    if missing := sorted(found.__abstractmethods__):
        raise ConfigError(f"model.type: {name} has no method {missing[0]!r}", field="model.type")
    return found


def _module(name: str) -> ModuleType:
    try:
        with _current_folder():
            return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            said = f"there is no module {error.name!r}, neither installed nor in {Path.cwd()}"
        else:
            said = f"importing {name!r} failed: {explained(error, name)}"
        raise ConfigError(f"model.type: {said}", field="model.type") from error


@contextmanager
def _current_folder() -> Iterator[None]:
    """Lets modules of the current folder be found, behind all others."""
    folder = str(Path.cwd())
    sys.path.append(folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)


def _check_arguments(made: type[RankingModel], config: OwnModelConfig, features: FeatureEmbeddings) -> None:
    parameters = list(inspect.signature(made).parameters.values())[1:]
    names = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    for name in config.arguments:
        if name not in names and not takes_any:
            raise ConfigError(
                f"model.{name}: {config.type} takes no argument {name!r}{did_you_mean(name, names)}",
                field=f"model.{name}",
            )
    try:
        inspect.signature(made).bind(features, **config.arguments)
    except TypeError as error:
        raise ConfigError(f"model: {config.type}: {error}", field="model") from None


def _place(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or "built in")
