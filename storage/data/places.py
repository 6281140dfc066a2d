"""Finds places of data: files and folders of this machine, and of object stores that pyarrow has a file system for."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pyarrow import fs

from storage.errors import ConfigError
from storage.features.strict_model import did_you_mean

# pathlib turns the two slashes of a URL into one, so a Path that was made from a URL has a single slash.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")
# Schemes of fsspec, and the package beside it that each needs.
_OF_FSSPEC = {"http": "aiohttp", "https": "aiohttp", "hf": "huggingface_hub"}
_SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", *_OF_FSSPEC)
_SIGNED = re.compile(r"(https?:/+[^?]*)\?.*", re.IGNORECASE | re.DOTALL)
_SECRET = re.compile(r"(?<=://)[^/@]*@")
_PATTERN = re.compile(r"[*?[]")


@dataclass(frozen=True)
class Place:
    """A path in a file system."""

    filesystem: Any = field(hash=False)
    #: The path as the file system knows it.
    inner: str
    #: The path for people: as it was given, without the passwords and options of a URL.
    shown: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.shown.rstrip("/").rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The extension in small letters, with its dot; "" without one."""
        dot = self.name.rfind(".")
        return self.name[dot:].lower() if dot > 0 else ""

    @property
    def is_remote(self) -> bool:
        """True when the file is not on this machine."""
        return not isinstance(self.filesystem, fs.LocalFileSystem)

    def info(self) -> Any:
        """Returns pyarrow's FileInfo. Raises ConfigError when the place cannot be reached."""
        try:
            return self.filesystem.get_file_info(self.inner)
        except OSError as error:
            raise ConfigError(f"{self.shown}: cannot be reached: {error}", field="data") from error

    @property
    def nothing(self) -> str:
        """The words for a place where there is neither a file nor a folder."""
        if _SIGNED.match(f"{self.shown}?"):
            return f"{self.shown}: there is no such file, or the server does not answer"
        return f"{self.shown}: there is no such file or folder"

    def children(self) -> Iterator[tuple[Place, Any]]:
        """Yields the entries of a folder with their FileInfo, by name."""
        # pyarrow's file system of Google lists folders only where an object stands for them.
        is_deep = self.filesystem.type_name == "gcs"
        try:
            found = self.filesystem.get_file_info(fs.FileSelector(self.inner, recursive=is_deep))
        except OSError as error:
            raise ConfigError(f"{self.shown}: cannot be listed: {error}", field="data") from error
        if is_deep:
            found = _direct_children(self.inner.rstrip("/"), found)
        for info in sorted(found, key=lambda info: info.base_name):
            if info.base_name:  # a folder of an object store may be an object of its own
                shown = f"{self.shown.rstrip('/')}/{info.base_name}"
                yield replace(self, inner=info.path, shown=shown), info

    def open(self) -> Any:
        """Opens the file as a pyarrow NativeFile. Raises OSError."""
        return self.filesystem.open_input_file(self.inner)


def places(data: Path | str) -> list[Place]:
    """Returns the place that a path or a URL means, or those that a pattern such as clicks/*.csv matches, by name."""
    text = str(data)
    found = _URL.match(text)
    if found is not None and found[1].lower() != "file":
        return _remote(found[1].lower(), text[found.end() :])
    if found is not None:
        text = "/" + text[found.end() :]
    local = fs.LocalFileSystem()
    if not _PATTERN.search(text) or Path(text).exists():
        return [Place(local, str(Path(text)), str(Path(text)))]
    matches = sorted(path for path in glob.glob(text, recursive=True) if not is_marker(path.rpartition("/")[2]))
    if not matches:
        raise ConfigError(f"{text}: no file or folder matches this pattern", field="data")
    return [Place(local, path, path) for path in matches]


def is_marker(name: str) -> bool:
    """Returns whether a name is that of a hidden file or of a marker such as _SUCCESS, which hold no rows."""
    return name.startswith((".", "_")) or name.endswith(".crc")


def without_secrets(path: Path | str) -> str:
    """Returns a path or URL without the user and the password that a URL may hold, and without a web page's query."""
    return _SIGNED.sub(r"\1", _SECRET.sub("", str(path)))


def _direct_children(folder: str, below: Iterable[Any]) -> list[Any]:
    """Returns the entries of a folder from all that lie below it: its files, and the folders of the others."""
    found: dict[str, Any] = {}
    for info in below:
        name, slash, _ = info.path[len(folder) + 1 :].partition("/")
        if not slash:
            found[name] = info
        elif name:
            found.setdefault(name, fs.FileInfo(f"{folder}/{name}", fs.FileType.Directory))
    return list(found.values())


def _remote(scheme: str, rest: str) -> list[Place]:
    if scheme not in _SCHEMES:
        raise ConfigError(
            f"data: {scheme}:// is not supported{did_you_mean(scheme, _SCHEMES)}; mount the storage or copy the files",
            field="data",
        )
    if scheme in ("http", "https"):
        url = f"{scheme}://{rest}"  # what stands behind a question mark belongs to it, such as a signature
        return [Place(_fsspec(scheme), url, without_secrets(url))]
    path, question, query = rest.partition("?")
    if not path.strip("/"):
        raise ConfigError(f"data: {scheme}:// names no bucket; expected {scheme}://BUCKET/PATH", field="data")
    base = path
    if _PATTERN.search(path):
        base = path[: _PATTERN.search(path).start()].rpartition("/")[0]  # type: ignore[union-attr]
    url = f"{scheme}://{base}{question}{query}"
    try:
        filesystem, inner = (_fsspec(scheme), base) if scheme in _OF_FSSPEC else fs.FileSystem.from_uri(url)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{without_secrets(f'{scheme}://{path}')}: no such storage: {error}", field="data") from error
    shown = without_secrets(f"{scheme}://{base}")
    root = Place(filesystem, inner, shown)
    if base == path:
        return [root]
    pattern = path[len(base) :].strip("/").split("/")
    matches = sorted(_matching(root, pattern), key=lambda place: place.inner)
    if not matches:
        raise ConfigError(
            f"{without_secrets(f'{scheme}://{path}')}: no file or folder matches this pattern", field="data"
        )
    return matches


def _fsspec(scheme: str) -> Any:
    try:
        import fsspec

        return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(scheme)))
    except ImportError:
        package = _OF_FSSPEC[scheme]
        raise ConfigError(f"data: {scheme}:// needs two packages: pip install fsspec {package}", field="data") from None


def _matching(place: Place, pattern: list[str]) -> Iterator[Place]:
    if not pattern:
        yield place
        return
    first, *rest = pattern
    if first == "**":
        yield from _matching(place, rest)
    for child, info in place.children():
        is_folder = info.type == fs.FileType.Directory
        if is_marker(child.name) or not (is_folder or len(pattern) == 1):
            continue
        if first == "**" and is_folder:
            yield from _matching(child, pattern)
        elif fnmatchcase(child.name, first):
            yield from _matching(child, rest)
