"""The reference says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import click
import pytest
from pydantic import BaseModel, Field

from docs.site import reference
from docs.site.commands import walk
from docs.site.markdown_tables import prose, table
from docs.site.metric_calls import metrics_of
from docs.site.metrics import all_metrics, exposed
from docs.site.pages import SiteError
from docs.site.python_api import PACKAGES
from docs.site.schemas import model_page
from emberline.cli.frame import COMMANDS, command
from serving.config import ServerConfig
from serving.grpc.needs import GRPC_NEEDS
from serving.http.routes import TABLE
from serving.model_config.options import ModelOptions
from tests.support.shown_commands import pages

ROOT = Path(__file__).parents[3]
METRIC = re.compile(r"\b((?:emberline|nv)_[a-z][a-z0-9_]+)\b")
PARTS = re.compile(r"_(?:bucket|sum|count)$")
ROUTE = re.compile(r"\b(GET|POST) (/[\w/{}.:-]+)")


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return reference.pages(ROOT)


def test_every_command_and_option_is_there(made: dict[str, str]) -> None:
    page = made["reference/cli.md"]
    names = {" ".join(path) for path, _, _ in walk(command, click.Context(command, info_name="emberline"))}
    assert {f"emberline {name}" for name in COMMANDS} <= names
    headings = {line.lstrip("# ") for line in page.splitlines() if line.startswith("##")}
    assert names <= headings
    assert "`--retain" not in page
    assert "| `--until-idle SECONDS` |" in page


@pytest.mark.parametrize("model", [ServerConfig, ModelOptions])
def test_every_option_has_its_meaning(model: type[BaseModel], made: dict[str, str]) -> None:
    page = made["reference/server.md" if model is ServerConfig else "reference/model.md"]
    rows = {line.split("|")[1].strip(): line.split("|") for line in page.splitlines() if line.startswith("| `")}
    for name in model.model_fields:
        assert rows[f"`{name}`"][-2].strip(), f"{model.__name__}.{name} needs a comment `#:` above it"


def test_routes_and_calls_are_those_of_the_server(made: dict[str, str]) -> None:
    page = made["reference/routes.md"]
    for operation in TABLE.operations:
        assert not operation.summary or f"| `{operation.method} {operation.path}` |" in page
    for call in GRPC_NEEDS:
        assert f"| `{call}` |" in page


def test_manifests_are_described(made: dict[str, str]) -> None:
    assert "## TableEntry { #tableentry }" in made["reference/manifest.md"]
    assert "[DeltaTableEntry](#deltatableentry)" in made["reference/delta-manifest.md"]


def test_the_public_names_are_there(made: dict[str, str]) -> None:
    for package in PACKAGES:
        names = [name for name in __import__(package).__all__ if not name.startswith("__")]
        shown = [line for line in made[f"reference/python-{package}.md"].splitlines() if line.startswith(":::")]
        assert [line.rpartition(".")[2] for line in shown] == names
    # A function in a module of its name.
    assert "::: trainer.publishing.publish.publish" in made["reference/python-emberline.md"]


def test_the_overview_lists_all_pages(made: dict[str, str]) -> None:
    text = reference.with_contents("# Reference\n")
    assert all(f"]({name})" in text for name in made)


class Inner(BaseModel):
    """A part."""

    #: What it counts.
    count: int = Field(default=1 << 20, ge=0, lt=2**31)


class Outer(BaseModel):
    size_bytes: int | None = 64 << 20
    #: A way, such as `a|b`.
    #: And more.
    way: Literal["a", "b"]
    inner: Inner = Inner()


def test_a_model_becomes_tables() -> None:
    page = model_page("Title", "What it is.", Outer)
    assert "| `size_bytes` | bytes, such as `2GiB`, or none | `64MiB` |  |" in page
    assert "| `way` | `a`, `b` | required | A way, such as `a\\|b`. And more. |" in page
    assert "| `inner` | [Inner](#inner) | its defaults |  |" in page
    assert "A part." in page
    assert "| `count` | integer, at least 0, less than 2^31 | `1048576` | What it counts. |" in page


def test_signs_of_markup_stand_for_themselves() -> None:
    assert prose("list<int64> and `a_b` of *x*") == "list\\<int64\\> and `a_b` of \\*x\\*"
    assert table(("a",), [("x|y",)]) == "| a |\n| --- |\n| x\\|y |\n"


SOURCE = """
_OF_THINGS = [("things_total", "Things that were counted", len), ("level", "How high it is", max)]
PREFIX = "emberline_new"

def metrics(models, pairs):
    known = [(model, labels(model)) for model in models]
    for name, meaning, value in _OF_THINGS:
        yield family(f"{PREFIX}_{name}", "gauge", meaning, [({**of, "arm": "a"}, value(model)) for model, of in known])
    yield mine("alone_seconds", "By itself", [({}, 1.0)])
    yield HistogramMetricFamily("emberline_ages", "How old.", labels=["model", "at"])

    yield from figures("live", _OF_THINGS, known)
    yield by("emberline_dropped_total", "Left out", "reason", known)

def figures(prefix, table, samples):
    for name, meaning, value in table:
        yield family(f"emberline_{prefix}_{name}", "gauge", meaning, [(of, value(each)) for each, of in samples])

def by(name, meaning, label, samples):
    return family(name, "counter", meaning, [({**of, label: key}, 1) for each, of in samples for key in each])

def labels(model):
    return {"model": model.name}

def mine(name, meaning, samples):
    return family(f"emberline_{name}", "gauge", meaning, samples)
"""


def test_metrics_are_read_from_calls_tables_and_functions() -> None:
    found = {each.name: (each.kind, each.labels, each.meaning) for each in metrics_of(SOURCE, "a.py")}
    assert found == {
        "emberline_new_things_total": ("gauge", ("model", "arm"), "Things that were counted"),
        "emberline_new_level": ("gauge", ("model", "arm"), "How high it is"),
        "emberline_alone_seconds": ("gauge", (), "By itself"),
        "emberline_ages": ("histogram", ("model", "at"), "How old"),
        "emberline_live_things_total": ("counter", ("model",), "Things that were counted"),
        "emberline_live_level": ("gauge", ("model",), "How high it is"),
        "emberline_dropped_total": ("counter", ("model", "reason"), "Left out"),
    }


def test_a_metric_that_cannot_be_read_is_an_error_with_its_line() -> None:
    source = 'def metrics(thing):\n    name = thing.name\n    yield family(name, "gauge", "It", [])\n'
    with pytest.raises(SiteError, match=r"serving/a\.py:3: the reference of metrics cannot read"):
        metrics_of(source, "serving/a.py")


def test_metrics_that_pages_name_exist() -> None:
    known = {exposed(each) for each in all_metrics(ROOT)}
    assert len(known) > 130
    unknown = [
        f"{page}: {name}"
        for page in pages()
        if page.startswith("docs/")
        for name in sorted(set(METRIC.findall((ROOT / page).read_text(encoding="utf-8"))))
        # A page may name the beginning of several, such as emberline_fleet_.
        if not name.endswith("_") and not any(each.startswith(PARTS.sub("", name)) for each in known)
    ]
    assert not unknown


def test_routes_that_pages_name_exist() -> None:
    unknown = [
        f"{page}: {method} {path}"
        for page in pages()
        for method, path in ROUTE.findall((ROOT / page).read_text(encoding="utf-8"))
        if not path.startswith(("/metrics", "/console"))
        and TABLE.find(method, path.rstrip(".:").replace("NAME", "{name}"))[0] is None
    ]
    assert not unknown
