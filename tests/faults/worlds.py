"""Models that an operator has decided about, killed in that state, and what a restart must restore.

Every world is built in a process of its own that ends by SIGKILL; what is left is a repository, a store and the
reference of each snapshot.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving import ServerConfig
from serving.repository.model_repository import ModelRepository
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted

POLL_S = 0.2
# What is published after the server has died.
LATER = "later"


class Offline(Live):
    """Model repository without a server around it, which can be started, and left as if the process had died."""

    store: Path | None = None

    @classmethod
    def of(cls, world: Prepared, store: Path) -> Offline:
        """Opens a prepared world over a copy of its store."""
        live = cls(world.folder)
        live.store, live.snapshots = store, dict(world.snapshots)
        return live

    def start(self, **options: Any) -> Offline:
        usual = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "poll_s": POLL_S}
        config = ServerConfig(
            model_repository=self.world.repository, store=self.store or self.folder / "store", **{**usual, **options}
        )
        self._repository = ModelRepository(config)
        self._repository.load_all()
        return self

    @property
    def repository(self) -> Any:
        return self._repository

    @property
    def updater(self) -> Any:
        """Returns the updater of the model."""
        return self._repository._models[NAME]


@dataclass(frozen=True)
class Decided:
    """State that a restart must restore."""

    #: Name of the served snapshot.
    served: str
    mode: str = "following"
    #: Name of the canary's snapshot; empty without a canary.
    canary: str = ""
    #: Names of snapshots that may be served before `served` is.
    on_the_way: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """A world as the kill left it.

    folder: holds `repository`, and `left`, the store.
    """

    name: str
    folder: Path
    decided: Decided
    snapshots: dict[str, Planted] = field(default_factory=dict)

    @property
    def repository(self) -> Path:
        """Folder of the model repository."""
        return self.folder / "repository"

    @property
    def left(self) -> Path:
        """The store as it was left, which is never opened itself."""
        return self.folder / "left"

    def store_to(self, folder: Path) -> None:
        """Copies the store to the folder. What was hard-linked to the repository is linked again, never copied."""
        shutil.rmtree(folder, ignore_errors=True)
        if self.left.is_dir():
            shutil.copytree(self.left, folder, copy_function=_link_or_copy)
        else:
            folder.mkdir(parents=True)


def _link_or_copy(source: str, target: str) -> None:
    if os.stat(source).st_nlink > 1:
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def rolled_back(live: Offline) -> Decided:
    """1.3 is served after a rollback from 1.6; a delta and a version that were made from that lie there."""
    live.world.configure(retain_snapshots=4)
    one = live.version()
    live.start()
    chain = live.chain(one, 6)
    live.reaches(chain[-1])
    live.repository.rollback(NAME, to="1.3")
    later = live.delta(chain[-1])
    two = live.version(parent=later)
    live.delta(two)
    live.until(lambda: "2" in (live.report()["waiting"] or ""))
    return Decided("1.3", "held")


def pinned(live: Offline) -> Decided:
    """1.2 is pinned, few rows are in DRAM, and the publisher has deleted version 1."""
    live.world.configure(retain_snapshots=4, dram_bytes=4000)
    one = live.version()
    live.start()
    chain = live.chain(one, 4)
    live.reaches(chain[-1])
    live.repository.pin(NAME, "1.2")
    live.version(parent=chain[-1])
    live.until(lambda: "pinned" in (live.report()["waiting"] or ""))
    shutil.rmtree(one.path)
    return Decided("1.2", "pinned")


def paused(live: Offline) -> Decided:
    """1.2 is served, 1.3 was refused, 1.4 waits for the end of a pause; budget and sessions are an operator's."""
    one = live.version()
    live.start()
    chain = live.chain(one, 2)
    live.reaches(chain[-1])
    live.delta(chain[-1], wrong_by=0.5)
    live.until(lambda: live.refused())
    live.repository.set_budget(NAME, 200_000)
    live.repository.set_sessions(NAME, 2)
    live.repository.pause(NAME)
    live.delta(chain[-1])
    live.until(lambda: "paused" in (live.report()["waiting"] or ""))
    return Decided("1.2", "paused")


def canary(live: Offline) -> Decided:
    """1.3 answers a quarter of the requests, 1.2 the others."""
    one = live.version()
    live.start()
    chain = live.chain(one, 2)
    live.reaches(chain[-1])
    live.repository.canary(NAME, fraction=0.25)
    live.delta(chain[-1])
    live.until(lambda: live.report()["canary"] is not None)
    return Decided("1.2", canary="1.3")


def canary_version(live: Offline) -> Decided:
    """Version 2, with a store of its own, answers half of the requests, 1.1 the others."""
    live.world.configure(version_reuse_share=0)
    one = live.version()
    live.start()
    chain = live.chain(one, 1)
    live.reaches(chain[-1])
    live.repository.canary(NAME, fraction=0.5)
    live.version(parent=chain[-1])
    live.until(lambda: live.report()["canary"] is not None)
    return Decided("1.1", canary="2.0")


def behind(live: Offline) -> Decided:
    """1.2 was served when the server died; 1.3, 1.4 and a version with a delta were published since."""
    one = live.version()
    chain = live.chain(one, 4)
    two = live.version(parent=chain[-1])
    live.delta(two)
    later = live.folder / LATER
    (later / "1" / "deltas").mkdir(parents=True)
    for path in (two.path, chain[2].path, chain[3].path):
        path.rename(later / path.relative_to(live.world.model_dir))
    live.start()
    live.reaches(chain[1])
    return Decided("2.1", on_the_way=("1.2", "1.3", "1.4", "2.0"))


def first(live: Offline) -> Decided:
    """There is no store yet."""
    live.chain(live.version(), 1)
    return Decided("1.1", on_the_way=("1.0",))


WORLDS: dict[str, Callable[[Offline], Decided]] = {
    each.__name__: each for each in (rolled_back, pinned, paused, canary, canary_version, behind, first)
}


def build(name: str, folder: Path, pipe: int) -> None:
    """Builds a world, writes its reference to the pipe, and ends this process by SIGKILL."""
    live = Offline(folder)
    decided = WORLDS[name](live)
    write_all(pipe, pickle.dumps((decided, live.snapshots)))
    os.kill(os.getpid(), signal.SIGKILL)


def finish(name: str, folder: Path, text: bytes) -> Prepared:
    """The world that `build` made, with its store set aside."""
    decided, snapshots = pickle.loads(text)
    left = folder / "left"
    if not left.exists() and (folder / "store").exists():
        (folder / "store").rename(left)
    model = folder / "repository" / NAME
    for path in (*(folder / LATER).glob("1/deltas/*"), *(folder / LATER).glob("2")):
        path.rename(model / path.relative_to(folder / LATER))
    return Prepared(name, folder, decided, snapshots)


def write_all(pipe: int, data: bytes) -> None:
    """Writes all of the data to the pipe."""
    while data:
        data = data[os.write(pipe, data) :]
