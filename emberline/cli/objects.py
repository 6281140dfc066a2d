"""Repositories in object stores, for commands that read one: what they hold, and copies of it on this machine."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from emberline.cli.command import LocalPath
from emberline.cli.view import View
from emberline.fitted_table import FittedTable, elided, whole
from storage.byte_sizes import human_bytes
from storage.errors import NotFound
from storage.objects import ObjectStore, is_url
from storage.objects.catalog import MODELS
from storage.objects.head import HEAD
from storage.objects.urls import SCHEMES

# What follows a model's name in the path of a version or a delta.
_INSIDE = re.compile(r"(?P<model>.+)/(?P<path>[1-9][0-9]*(/deltas/[0-9]{6,19})?)")


class ModelPath(click.ParamType[Path | str]):
    """A folder that is there, or a URL of an object store."""

    name = "path or url"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        """Converts to a path, or leaves a URL as it is. Fails as click does."""
        if is_url(value):
            return str(value).rstrip("/")
        return Path(LocalPath(exists=True, file_okay=False).convert(value, param, ctx))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Lets the shell complete folders."""
        return [CompletionItem(incomplete, type="dir")]


def copy_of(model: Path | str) -> Path:
    """Returns the folder of a model; for a URL a copy with every version and delta, under the user's cache.

    Raises NotFound for a URL at which no model is published.
    """
    if not is_url(model):
        return Path(model)
    from storage.objects.mirror import RepositoryMirror

    url, _, name = str(model).rpartition("/")
    mirror = RepositoryMirror(url, copies_dir(url), models=[name], choose=None, waits=True)
    try:
        mirror.once()
    finally:
        mirror.stop()
    return mirror.root / name


def copies_dir(url: str) -> Path:
    """Returns the folder of the copies that commands make of a repository."""
    place = hashlib.sha256(url.encode()).hexdigest()[:12]
    return Path.home() / ".cache" / "emberline" / "copies" / place


def is_published(url: str) -> bool:
    """Returns whether a URL names a repository in an object store, or something in it, and not data."""
    if not is_url(url) or url.partition(":")[0].lower() not in SCHEMES or any(sign in url for sign in "*?["):
        return False
    inside = _INSIDE.fullmatch(url.rstrip("/"))
    for parent, key in ((url, MODELS), (url, HEAD), *([] if inside is None else [(inside["model"], HEAD)])):
        try:
            ObjectStore(parent).read(key)
            return True
        except NotFound:
            continue
    return False


def look_into(url: str) -> View | Path:
    """Describes what a repository or a model in an object store holds; returns a copy of a version or delta instead.

    Raises NotFound when the URL names neither.
    """
    url = url.rstrip("/")
    from storage.objects.catalog import ModelNames
    from storage.objects.fetching import Fetcher
    from storage.objects.published import PublishedModel

    inside = _INSIDE.fullmatch(url)
    if inside is not None:
        root, _, name = inside["model"].rpartition("/")
        objects = ObjectStore(root)
        head, _ = PublishedModel(objects, name).look(None) or (None, "")
        path = inside["path"]
        if head is None or not head.names(path):
            raise NotFound(f"{url} is not published; `emberline inspect {inside['model']}` shows what is")
        target = copies_dir(f"{root}#inspected") / name / path
        fetcher = Fetcher(objects)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fetcher.folder(f"{name}/{path}", head.manifest_of(path), target, sync=False)
        finally:
            fetcher.close()
        return target
    names = ModelNames(ObjectStore(url)).read()
    root, found = url, list(names)
    if not names:
        root, _, name = url.rpartition("/")
        found = [name]
    shown = View({"kind": "objects", "url": url, "models": []})
    for name in found:
        model = PublishedModel(ObjectStore(root), name)
        head = model.head()
        if not head.versions:
            raise NotFound(f"{url}: neither a repository nor a model; nothing is published there")
        table = FittedTable(whole("snapshot"), elided("id"), "bytes", whole("made from"), title=model.url)
        snapshots = []
        for version in head.versions:
            entries = [(f"{version.version}.0", version.snapshot, version.bytes, "")]
            for delta in version.deltas:
                made_from = f"{version.version}.{delta.from_sequence}"
                entries.append((f"{version.version}.{delta.sequence}", delta.snapshot, delta.bytes, made_from))
            for snapshot, own_id, size, made_from in entries:
                table.add_row(snapshot, own_id, human_bytes(size), made_from)
                snapshots.append({"snapshot": snapshot, "id": own_id, "bytes": size, "made_from": made_from or None})
        shown.document["models"].append({"model": name, "url": model.url, "snapshots": snapshots})
        shown.parts.append(table)
    return shown
