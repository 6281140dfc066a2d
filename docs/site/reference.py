"""Lists the generated pages of the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from docs.site.commands import commands_page
from docs.site.metrics import metrics_page
from docs.site.python_api import PACKAGES, package_page
from docs.site.routes import routes_page
from docs.site.schemas import model_page
from emberline.cli.serve import command as serve
from serving.config import ServerConfig
from serving.model_config.options import ModelOptions
from storage.checkpoint.delta_manifest import DeltaManifest
from storage.checkpoint.manifest import Manifest
from trainer.config import TrainConfig

#: The page of docs/ that the list of the generated pages is added to.
OVERVIEW = "reference.md"
_SERVER = "What `emberline serve` takes as options and `emberline.ServerConfig` as fields ([serving](../serving.md))."
_MODEL = "The keys under `parameters` of a model's `config.pbtxt` ([serving](../serving.md))."
_TRAINING = "The YAML file of `emberline train` ([training](../training.md))."
_MANIFEST = "The file `manifest.json` of a published version ([format](../format.md))."
_DELTA = "The file `manifest.json` of a published delta ([format](../format.md))."

_MAKERS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "cli": ("every command and option", lambda root: commands_page()),
    "server": (
        "the options of a server",
        lambda root: model_page("Server options", _SERVER, ServerConfig, serve_flags()),
    ),
    "model": ("the options of a model", lambda root: model_page("Model options", _MODEL, ModelOptions)),
    "training": (
        "the file of a training",
        lambda root: model_page("Training configuration", _TRAINING, TrainConfig),
    ),
    "metrics": ("every metric with its labels", metrics_page),
    "routes": ("every HTTP route and gRPC call", lambda root: routes_page()),
    "manifest": ("the manifest of a version", lambda root: model_page("Manifest of a version", _MANIFEST, Manifest)),
    "delta-manifest": (
        "the manifest of a delta",
        lambda root: model_page("Manifest of a delta", _DELTA, DeltaManifest),
    ),
}


def serve_flags() -> dict[str, str]:
    """Returns the option of `emberline serve` that sets each field, for fields that one sets."""
    return {parameter.name: parameter.opts[0] for parameter in serve.params if parameter.name is not None}


def pages(root: Path) -> dict[str, str]:
    """Returns the Markdown of every generated page, by its path among the sources of the site."""
    made = {f"reference/{name}.md": make(root) for name, (_, make) in _MAKERS.items()}
    return made | {f"reference/python-{package}.md": package_page(package) for package in PACKAGES}


def with_contents(overview: str) -> str:
    """Returns the overview with a list of the generated pages behind it."""
    lines = [f"- [{said[0].upper()}{said[1:]}](reference/{name}.md)" for name, (said, _) in _MAKERS.items()]
    lines += [f"- [The Python package `{package}`](reference/python-{package}.md)" for package in PACKAGES]
    return "\n".join([overview.rstrip("\n"), "", "## Pages", "", *lines, ""])
