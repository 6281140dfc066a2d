"""The injected faults really reach Python, the database and the native modules, and only where they are meant to."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.injector import FAULTS, Call, build, compiler, environment, listed

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler to build the injected library with")

# What each kind of call looks like from Python, on the file or folder `place`.
CALLS = {
    "open": "open(place, 'rb')",
    "create": "open(place + '.new', 'wb')",
    "read": "os.pread(os.open(place, os.O_RDONLY), 8, 0)",
    "write": "os.write(os.open(place, os.O_WRONLY), b'12345678')",
    "sync": "os.fsync(os.open(place, os.O_RDONLY))",
    "rename": "os.rename(place, place + '.other')",
    "link": "os.link(place, place + '.other')",
    "unlink": "os.unlink(place)",
    "mkdir": "os.mkdir(place + '.folder')",
    "stat": "os.stat(place)",
    "list": "os.listdir(os.path.dirname(place))",
    "map": "mmap.mmap(os.open(place, os.O_RDONLY), 8, prot=mmap.PROT_READ)",
    "truncate": "os.truncate(os.open(place, os.O_WRONLY), 4)",
    "lock": "fcntl.flock(os.open(place, os.O_RDONLY), fcntl.LOCK_SH)",
}
AT = {"create": ".new", "mkdir": ".folder"}

ONE_CALL = """
import fcntl, json, mmap, os, sys
from pathlib import Path
from tests.faults.injector import Call, Injector
place, path, kind, error, call = sys.argv[1:]
injector = Injector()
injector.watch([Path(place).parent])
injector.arm(Call(kind, path, 2), int(error))
said = []
for _ in range(3):
    try:
        eval(call)
        said.append(0)
    except OSError as failure:
        said.append(failure.errno)
print(json.dumps([said, injector.fired]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("injector"))


def run(library: Path, code: str, *arguments: object, others: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env=environment(library, others),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", list(FAULTS))
def test_the_second_call_of_a_kind_fails_and_no_other(library: Path, tmp_path: Path, kind: str) -> None:
    place = tmp_path.resolve() / "file"
    place.write_bytes(b"0123456789")
    path = place.parent if kind == "list" else f"{place}{AT.get(kind, '')}"
    said: Any = json.loads(run(library, ONE_CALL, place, path, kind, errno.EIO, CALLS[kind]))
    codes, fired = said
    assert fired == 1
    # Listing a folder is one call to open it and one for each entry.
    failing = 0 if kind == "list" else 1
    assert codes[failing] == errno.EIO
    # What can be done once only fails for reasons of its own when it is repeated.
    assert set(codes[:failing] + codes[failing + 1 :]) <= {0, errno.ENOENT, errno.EEXIST}


def test_a_short_read_and_a_short_write_move_half(library: Path, tmp_path: Path) -> None:
    place = tmp_path.resolve() / "file"
    place.write_bytes(b"0123456789")
    code = """
import os, sys
from pathlib import Path
from tests.faults.injector import SHORT, Call, Injector
place = sys.argv[1]
injector = Injector()
injector.watch([Path(place).parent])
file = os.open(place, os.O_RDWR)
injector.arm(Call("read", place, 1), SHORT)
print(os.read(file, 8).decode(), os.read(file, 8).decode())
injector.arm(Call("write", place, 1), SHORT)
print(os.pwrite(file, b"abcdefgh", 0))
"""
    assert run(library, code, place).split() == ["0123", "456789", "4"]
    assert place.read_bytes() == b"abcd456789"


@pytest.mark.slow
def test_the_calls_of_the_database_and_of_the_page_files_are_seen(library: Path, tmp_path: Path) -> None:
    root, log = tmp_path.resolve(), tmp_path / "calls"
    code = """
import sys
from pathlib import Path
from storage import open_version
from storage.tiers.tiered import TieredStore
from tests.integration.serving.planted import World
root = Path(sys.argv[1])
published = open_version(World(root / "repository").publish().path)
for _ in range(2):
    with TieredStore.open(root / "store", published.tables, dram_bytes=0) as store:
        store.load(published)
"""
    run(library, code, root, others={"FAULTS_WATCH": f"{root}/store", "FAULTS_LOG": str(log), "FAULTS_NO_URING": "1"})
    seen = {(call.kind, Path(call.path).name.rstrip("0123456789")) for call in listed(log)}
    kinds = {kind for kind, _ in seen}
    assert {"open", "create", "read", "write", "sync", "rename", "unlink", "mkdir", "stat", "list", "lock"} <= kinds
    rocksdb = {(call.kind, Path(call.path).name.split("-")[0]) for call in listed(log) if "/rocksdb/" in call.path}
    assert {("write", "MANIFEST"), ("sync", "MANIFEST"), ("read", "MANIFEST"), ("lock", "LOCK")} <= rocksdb
    pages = {call.kind for call in listed(log) if ".pages" in call.path}
    assert {"write", "sync", "read", "open"} <= pages, sorted({call.path for call in listed(log)})


def test_what_is_not_watched_is_left_alone(library: Path, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"here")
    code = "import sys; print(open(sys.argv[1]).read())"
    others = {"FAULTS_WATCH": f"{tmp_path}/fil", "FAULTS_ERRNO": str(errno.EIO), "FAULTS_TIMES": "99"}
    assert run(library, code, place, others=others).strip() == "here"


def test_a_log_says_which_call_on_a_path_it_was(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    log.write_text("open\t/a\nread\t/a\nread\t/a\nread\t/b\n")
    assert listed(log) == [Call("open", "/a", 1), Call("read", "/a", 1), Call("read", "/a", 2), Call("read", "/b", 1)]
