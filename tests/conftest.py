"""Marks every test by the folder it lies in, gives hypothesis its profiles, and has slow files begin first.

A report that is no Unicode is escaped before a process of tests sends it. OpenMP computes with one thread, and garbage
collections do not walk what collecting the tests made.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.examples import register_profiles
from tests.support.object_store import s3, store_url  # noqa: F401

# Torch reads it when it is loaded, and the processes that tests start inherit it. Several processes of tests share the
# cores: with a thread for each core in each of them, those of a small product would spin while they wait for one that
# has no core. The server and training set their own number, and so do the tests that compare numbers of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
register_profiles()
# Where --hypothesis-profile does not name another one.
settings.load_profile("full")

# Only where a test has imported it.
_LOOKUPS = "tests.simulated_gpu.lookups"
FOLDERS = {"unit", "integration", "e2e", "gpu"}
# Servers and commands as a user runs them, and load over time: slow as a whole.
SLOW_FOLDERS = {"e2e", "soak"}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collects the tests without garbage collections, and excludes what they and their imports made from later ones.

    Each full one would walk a million objects that stay: a quarter of the time of collecting, and half a second of each
    test that calls one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # Native modules look for leaks at the end, and frozen objects are never freed.
        atexit.register(gc.unfreeze)
        gc.enable()


@pytest.fixture(autouse=True)
def caches_are_used(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test whose simulated GPUs look up many ids and find next to none, unless it is marked cold_cache."""
    before = replace(module.everywhere) if (module := sys.modules.get(_LOOKUPS)) else None
    yield
    module = sys.modules.get(_LOOKUPS)
    if module is None or request.node.get_closest_marker("cold_cache") is not None:
        return
    now = module.everywhere if before is None else module.everywhere - before
    assert not now.why_useless, now.why_useless


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        parts = Path(item.path).relative_to(root).parts
        if parts[0] in FOLDERS:
            item.add_marker(parts[0])
        if parts[0] in SLOW_FOLDERS:
            item.add_marker("slow")
    if hasattr(config, "workerinput"):
        # One of several processes that take a file each: a slow file that began last would be waited for by all others.
        slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
        items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escapes what is no Unicode in a report: a process that cannot send one ends, and the whole run with it."""
    return _escaped((yield))


def _escaped(value: Any) -> Any:
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {_escaped(key): _escaped(each) for key, each in value.items()}
        case list() | tuple():
            return type(value)(_escaped(each) for each in value)
    return value
