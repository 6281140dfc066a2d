"""This server's part in the fleets of its models: who it is, and its member of each."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from pydantic import JsonValue

from serving.config import ServerConfig
from serving.errors import Forbidden
from serving.fleet.identity import Identity, identity_of
from serving.fleet.judging import FleetJudges
from serving.fleet.member import FleetMember
from serving.fleet.peers import Peers
from serving.fleet.reading import Reader
from serving.fleet.view import fleet_view, with_own
from serving.updates.live_model import LiveModel
from storage.errors import Unavailable
from storage.objects.fleet import FleetObjects
from storage.objects.follower import Watch
from storage.objects.head import Head
from storage.objects.mirror import RepositoryMirror
from storage.objects.object_store import ObjectStore
from storage.objects.published import PublishedModel

logger = logging.getLogger("emberline.serving")

_RETRY_S = 3.0
_LEAVE_S = 5.0
_JUDGE_S = 0.25


class Fleet:
    """The members of this server, by model. Thread-safe."""

    def __init__(self, config: ServerConfig) -> None:
        """Asks the object store nothing."""
        assert config.repository_url is not None
        self._config = config
        self._stopped = threading.Event()
        self._objects = ObjectStore(config.repository_url, retry_s=_RETRY_S, stop=self._stopped)
        self._peers = Peers()
        self._identity: Identity | None = None
        self._lock = threading.Lock()
        self._members: dict[str, FleetMember] = {}
        self._readers: dict[str, Reader] = {}
        self._heads: dict[str, Head] = {}
        self._threads: list[threading.Thread] = []
        self._mirror: RepositoryMirror | None = None
        self.watch = Watch(self._on_head, self._hurries, retry_last_s=2.0)

    def follow(self, mirror: RepositoryMirror) -> None:
        """Takes the mirror that `watch` was given to; its traffic counts that of the members too."""
        self._mirror = mirror
        self._objects.share_traffic(mirror.traffic)

    def identify(self, http_port: int) -> None:
        """Says at which port this server answers; called before `start`."""
        self._identity = who = identity_of(self._config, http_port)
        logger.info("replica %s of the fleet, asked for its health at %s", who.id, who.url)

    def join(self, model: LiveModel, follow: Callable[[], None]) -> None:
        """Makes a model a member of its fleet, in the place of the one of this name before."""
        mirror = self._mirror
        assert mirror is not None
        name = model.name
        objects = FleetObjects(PublishedModel(self._objects, name))
        member = FleetMember(
            model,
            self._who,
            objects,
            self._peers,
            look=lambda: mirror.check(name),
            hurry=lambda: mirror.wake(name),
            follow=follow,
            not_brought=lambda: mirror.not_brought(name),
        )
        model.agreement = member
        model.judges = FleetJudges(member, self._who, objects)
        with self._lock:
            self._members[name] = member
            self._readers[name] = Reader(objects, mirror)
            head = self._heads.get(name)
        if head is not None:
            member.see(head)

    def start(self, name: str) -> None:
        """Starts the threads of a model's member."""
        with self._lock:
            member = self._members[name]
            started = [
                threading.Thread(target=member.run, name=f"emberline-fleet-{name}", daemon=True),
                threading.Thread(target=_judge, args=(member.model,), name=f"emberline-judge-{name}", daemon=True),
            ]
            self._threads = [*(each for each in self._threads if each.is_alive()), *started]
        for thread in started:
            thread.start()

    def member(self, name: str) -> FleetMember | None:
        """Returns the member of a model; None where there is none."""
        with self._lock:
            return self._members.get(name)

    def view(self, name: str) -> dict[str, JsonValue]:
        """Returns what all replicas serve of a model that is a member, and what each says of itself.

        While the object store does not answer, that is what is known here. Raises Unavailable where nothing is.
        """
        with self._lock:
            member, reader = self._members[name], self._readers[name]
        reading = reader.read()
        head, own = member.head, member.itself()
        if head is None:
            raise Unavailable(f"model {name!r}: {member.why_not()}: {reading.error}".removesuffix(": "))
        if reading.error:
            reading = replace(reading, replicas=with_own(reading.replicas, own))
        health = self._peers.wait(reading.replicas)
        said = self._peers.serve(name, [each for each in reading.replicas if health.get(each.id) == "ready"])
        return fleet_view(name, head, reading, health, said | {own.id: own.served}, own.id)

    def why_not(self, name: str) -> str:
        """Returns why this server should get no requests for a model; "" when it may."""
        member = self.member(name)
        return "" if member is None else member.why_not()

    def wake(self, name: str, word: str, *, looks: bool) -> str:
        """Returns the snapshot that is served here. looks: whether to look, too, what is published and ordered now.

        Raises Forbidden unless the word is the one in the object store.
        """
        member = self.member(name)
        if member is None or word != member.wake_word:
            raise Forbidden("this call is for the other replicas of the fleet")
        if looks:
            member.wake()
        return member.itself().served

    def close(self) -> None:
        """Waits a while until this server has left the fleets of its models, which are stopping."""
        with self._lock:
            members, threads = list(self._members.values()), self._threads
        for member in members:
            member.notice()
        deadline = time.monotonic() + _LEAVE_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._stopped.set()
        self._peers.close()

    def _who(self) -> Identity:
        assert self._identity is not None, "identify is called before start"
        return self._identity

    def _on_head(self, name: str, head: Head, not_before: float) -> None:
        with self._lock:
            self._heads[name] = head
            member = self._members.get(name)
        if member is not None:
            member.see(head, not_before)

    def _hurries(self, name: str) -> bool:
        member = self.member(name)
        return member is not None and member.hurries()


def _judge(model: LiveModel) -> None:
    """Judges canaries until the model is stopped, beside its updates, since the object store may not answer."""
    while not model.stopping.wait(_JUDGE_S):
        model.judge_canary()
