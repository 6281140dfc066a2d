"""Faults that one trial does to a fleet; what must hold afterwards is in `trials`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from storage.errors import CheckpointError, NotFound, ObjectStoreError
from storage.objects import ObjectStore
from storage.objects.published import PublishedModel
from tests.faults.fleet.replicas import Fleet
from tests.faults.fleet.stores import ForgettingStore, ShorteningStore
from tests.integration.serving.planted import NAME, Planted
from tests.support.faulty_proxy import Fault as StoreFault
from tests.support.object_store import DyingStore

#: Does a fault, and returns what it did in a few words. It may leave servers dead.
Fault = Callable[[Fleet, np.random.Generator], str]

# Writes of one publication: files, the claim, the manifest, head.json, and what comes after it.
_WRITES = 9


def kill_holder(fleet: Fleet, rng: np.random.Generator) -> str:
    """Kills the server that decides for all, some time after something was published."""
    fleet.publish()
    name = fleet.holder(within_s=2.0)
    pause = float(rng.uniform(0.0, 0.8))
    time.sleep(pause)
    fleet.kill(name)
    fleet.publish()
    time.sleep(float(rng.uniform(0.0, 2.0)))
    return f"{name} died {pause:.2f} s after it took the lease"


def kill_stager(fleet: Fleet, rng: np.random.Generator) -> str:
    """Kills some server while it takes a delta."""
    fleet.publish(count=int(rng.integers(1, 200)))
    pause = float(rng.uniform(0.0, 1.6))
    time.sleep(pause)
    name = fleet.any_name()
    fleet.kill(name)
    if rng.random() < 0.5:
        fleet.publish()
    return f"{name} died {pause:.2f} s after a delta"


def kill_two(fleet: Fleet, rng: np.random.Generator) -> str:
    """Kills two servers at once while they take a delta."""
    fleet.publish()
    pause = float(rng.uniform(0.0, 1.6))
    time.sleep(pause)
    names = [str(name) for name in rng.choice(fleet.names, 2, replace=False)]
    for name in names:
        fleet.kill(name)
    fleet.publish()
    return f"{' and '.join(names)} died {pause:.2f} s after a delta"


def new_server(fleet: Fleet, rng: np.random.Generator) -> str:
    """Replaces a server by one that has nothing on its disk, while deltas are published."""
    name = fleet.any_name()
    fleet.publish()
    fleet.kill(name)
    fleet.forget(name)
    starting = threading.Thread(target=fleet.start, args=(name,))
    starting.start()
    count = 0
    while starting.is_alive():
        fleet.publish()
        count += 1
        time.sleep(float(rng.uniform(0.2, 1.5)))
    starting.join()
    return f"{name} was replaced during {count} deltas"


def cut_off(fleet: Fleet, rng: np.random.Generator) -> str:
    """Lets one server reach the store no longer, while a delta is published."""
    assert fleet.proxy is not None
    fleet.publish()
    kind: StoreFault = "hang" if rng.random() < 0.5 else "503"
    with fleet.proxy.failing(kind, lambda method, path: True):
        fleet.publish()
        time.sleep(float(rng.uniform(2.0, 8.0)))
    return f"{kind} for one server"


def kill_child(fleet: Fleet, rng: np.random.Generator) -> str:
    """Kills the process that serves; its supervisor starts another one."""
    fleet.publish()
    time.sleep(float(rng.uniform(0.0, 1.6)))
    name = fleet.any_name()
    os.kill(fleet.servers[name].serving_pid, signal.SIGKILL)
    fleet.publish()
    return f"the child of {name} died"


def kill_publisher(fleet: Fleet, rng: np.random.Generator) -> str:
    """Ends a publisher between two of its writes; another one goes on."""
    return _dying(fleet, rng, DyingStore)


def forgotten_write(fleet: Fleet, rng: np.random.Generator) -> str:
    """Ends a publisher likewise, and the store forgets the write that it did last."""
    return _dying(fleet, rng, ForgettingStore)


def _dying(fleet: Fleet, rng: np.random.Generator, kind: type[DyingStore]) -> str:
    made = fleet.change()
    store = kind(fleet.url)
    DyingStore.left = writes = int(rng.integers(0, _WRITES))
    died = False
    try:
        PublishedModel(store, NAME).put(made.path)
    except KeyboardInterrupt:
        died = True
    finally:
        DyingStore.left = 10**6
    if isinstance(store, ForgettingStore):
        time.sleep(float(rng.uniform(0.0, 1.0)))
        store.forget()
    is_published = bool(fleet.model.head().find(made.id))
    again = is_published or rng.random() < 0.6
    if again:
        fleet.model.put(made.path)
        fleet.newest = made
    else:
        # The trainer gave up what it had begun, and publishes its next state as a delta of what is published.
        fleet.publish()
    return f"{'died after' if died else 'lived through'} {writes} writes, {'again' if again else 'another one'}"


def two_publishers(fleet: Fleet, rng: np.random.Generator) -> str:
    """Two publishers make a delta of the same snapshot under the same number, at the same time."""
    parent, rivals = fleet.newest, [fleet.change()]
    folders = [_aside(fleet, rivals[0])]
    rivals.append(fleet.note(fleet.world.change(parent, sequence=rivals[0].sequence)))
    folders.append(rivals[1].path)
    won: list[Planted] = []

    def put(snapshot: Planted, folder: Path) -> None:
        try:
            PublishedModel(ObjectStore(fleet.url), NAME).put(folder)
        except (CheckpointError, ObjectStoreError, NotFound):
            return
        won.append(snapshot)

    threads = [threading.Thread(target=put, args=pair) for pair in zip(rivals, folders, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1, f"{len(won)} publishers believe that they published {rivals[0].name}"
    fleet.newest = won[0]
    return f"{'the first' if won[0] is rivals[0] else 'the second'} won"


def _aside(fleet: Fleet, snapshot: Planted) -> Path:
    """Moves a delta's folder to a repository of its own, where another one of its number may lie."""
    place = fleet.folder / "rival" / NAME / str(snapshot.version) / "deltas" / snapshot.path.name
    place.parent.mkdir(parents=True, exist_ok=True)
    snapshot.path.rename(place)
    return place


def store_5xx(outage_s: float) -> Fault:
    """Returns a fault: the store answers 503 to all servers for a while, and something is published meanwhile."""

    def fault(fleet: Fleet, rng: np.random.Generator) -> str:
        assert fleet.proxy is not None
        fleet.publish()
        time.sleep(float(rng.uniform(0.0, 1.5)))
        with fleet.proxy.failing("503", lambda method, path: True):
            fleet.publish()
            time.sleep(outage_s)
        return f"503 for {outage_s:g} s, {len(fleet.proxy.met)} requests"

    return fault


def truncated(fleet: Fleet, rng: np.random.Generator) -> str:
    """Damages what comes: answers that end too early for a while, or an object that is shorter than it was."""
    assert fleet.proxy is not None
    if rng.random() < 0.5:
        with fleet.proxy.failing("cut", lambda method, path: method == "GET" and "deltas" in path):
            fleet.publish()
            time.sleep(float(rng.uniform(0.5, 3.0)))
        return f"{len(fleet.proxy.met)} answers cut"
    parent = fleet.newest
    bad = fleet.change()
    files = sorted(path for path in bad.path.rglob("*") if path.is_file() and path.stat().st_size > 1)
    name = files[int(rng.integers(0, len(files)))].name
    PublishedModel(ShorteningStore(fleet.url, name), NAME).put(bad.path)
    time.sleep(float(rng.uniform(1.0, 3.0)))
    assert not any(fleet.served(each) == bad.id for each in fleet.names), f"the truncated {bad.name} is served"
    fleet.newest = parent
    return f"{name} of {bad.name} cut to half"


def switch(fleet: Fleet, rng: np.random.Generator) -> str:
    """Publishes; for fleets whose clocks differ. Now and then the holder dies too."""
    for _ in range(3):
        fleet.publish()
        time.sleep(float(rng.uniform(0.0, 1.5)))
    if rng.random() < 0.3:
        return kill_holder(fleet, rng)
    return "3 deltas"
