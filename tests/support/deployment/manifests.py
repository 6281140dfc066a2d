"""Reads the manifests of deploy/, renders them by kustomize, and picks what tests look at."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.support.deployment.programs import ROOT, check, program

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
# Of an example pod.
POD_FIELDS = {"metadata.name": "emberline-0", "status.podIP": "10.1.2.3"}

Object = dict[str, Any]


def read(path: Path) -> list[Object]:
    """Returns the objects of a YAML file."""
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


@functools.cache
def _rendered(folder: Path) -> str:
    return check(program("kubectl"), "kustomize", folder)


def rendered(folder: Path) -> list[Object]:
    """Returns the objects that kustomize makes of a folder."""
    return [each for each in yaml.safe_load_all(_rendered(folder)) if each]


def with_components(folder: Path, *names: str) -> list[Object]:
    """Returns the base with some components. folder: an empty one for a kustomization, beside or below deploy/."""
    base, *components = (
        "../" * len(folder.parts) + str(KUBERNETES / each).lstrip("/")
        for each in ("base", *(f"components/{name}" for name in names))
    )
    lines = {"resources": [base], "components": components, "namespace": "emberline"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(lines))
    return rendered(folder)


def one(objects: Sequence[Object], kind: str, name: str = "emberline") -> Object:
    """Returns the only object of a kind and name."""
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def pod_templates(objects: Sequence[Object]) -> Iterator[Object]:
    """Yields the pod template of every workload."""
    yield from (each["spec"]["template"] for each in objects if "template" in each.get("spec", {}))


def environment(container: Object, objects: Sequence[Object]) -> dict[str, str]:
    """Returns a container's variables with what ConfigMaps give; fields of the pod are those of an example."""
    found: dict[str, str] = {}
    for each in container.get("envFrom", ()):
        found |= one(objects, "ConfigMap", each["configMapRef"]["name"])["data"]
    for each in container.get("env", ()):
        value = each["value"] if "value" in each else POD_FIELDS[each["valueFrom"]["fieldRef"]["fieldPath"]]
        found[each["name"]] = _expanded(value, found)
    return found


def arguments(container: Object, variables: Mapping[str, str]) -> list[str]:
    """Returns the command line after the image's entry point, with $(NAME) as Kubernetes expands it."""
    line = [*container.get("command", ["emberline", "serve"]), *container.get("args", ())]
    return [_expanded(each, variables) for each in line]


def selects(labels: Mapping[str, str], of: Object) -> bool:
    """Returns whether matchLabels select an object."""
    return bool(labels) and labels.items() <= of["metadata"].get("labels", {}).items()


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """Returns a text with $(NAME) as Kubernetes expands it. Fails for a variable that is not there, or not yet."""
    for name, value in variables.items():
        text = text.replace(f"$({name})", value)
    assert "$(" not in text, f"a variable that the container does not have: {text}"
    return text
