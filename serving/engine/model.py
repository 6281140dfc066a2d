"""Defines a loaded version: its sessions share one copy of weights and tables, behind one bounded queue."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from serving.engine.core_shares import CoreShares
from serving.engine.endpoint import Endpoint
from serving.engine.partial_inputs import needs_of_outputs, stand_ins
from serving.engine.recent import RecentRequests
from serving.engine.replay import ModelParts
from serving.engine.requests import InferenceResult, LoopSink, QueuedRequest
from serving.engine.session_scaling import SessionScaling
from serving.engine.shadow import Shadow
from serving.engine.table_endpoint import TableEndpoint
from serving.engine.tap import RequestTap, sample_one
from serving.engine.validation import Claims, ValidationReport, validate
from serving.engine.warm_up import golden_warm_ups, read_warm_ups
from serving.gpu.driver import Gpus
from serving.model_config.options import ModelOptions
from serving.model_config.pbtxt import ModelConfig, complete_model_config
from serving.pipeline.levels import ChainedFeature, chained_features
from serving.pipeline.snapshot import Snapshot, SnapshotHistory
from serving.protocol.signature import ModelSignature, OutputSignature
from storage.checkpoint import Golden, PublishedVersion
from storage.errors import NotFound, Unavailable
from storage.features import FeatureBatch
from storage.features.strict_model import did_you_mean
from storage.tiers.tiered import StoreStats, TieredStore

# Seconds between looks whether a snapshot is still in use.
_LOOK_S = 0.005
# A piece of work in the background waits so long for a core at most.
_MOST_WAIT_S, _PACE_LOOK_S = 0.05, 0.001


class LoadedModel(Endpoint):
    """Answers requests on the snapshots of its `history` until `close`. The store belongs to the caller.

    `judge` validates a snapshot before requests see it, and `serve` starts serving it; in between, the caller records
    it.
    """

    def __init__(
        self,
        config: ModelConfig,
        published: PublishedVersion,
        store: TieredStore,
        snapshot: Snapshot,
        *,
        recent: RecentRequests | None = None,
        cores: CoreShares | None = None,
        gpus: Gpus | None = None,
        sessions: int | None = None,
        tap: RequestTap | None = None,
    ) -> None:
        """Starts the sessions.

        store: filled with the version's rows. snapshot: the first to be served. recent: requests of the version
        before, to continue with. cores: shared with the other models. gpus: those that `config.places` names.
        sessions: their number, instead of what the configuration says. tap: looks at its requests.

        Raises ConfigError when config.pbtxt does not fit the version, DeviceError when a GPU has no memory left for it.
        """
        manifest = published.manifest
        options = config.options
        self._chained = chained_features(published.spec)
        needs = needs_of_outputs(published.spec, snapshot.graph)
        signature = ModelSignature.of(
            config.name,
            published.spec,
            manifest.graph.outputs,
            config.max_batch_size or manifest.max_batch_size,
            config.labels,
            [OutputSignature(each.output, "UINT8", each.dims) for each in self._chained],
            needs,
            stand_ins(published, needs),
        )
        lookup_timeout_ms = options.lookup_timeout_ms
        self._lookup_timeout_s = None if lookup_timeout_ms is None else lookup_timeout_ms / 1000
        self.parts = ModelParts(published, store, torch_threads=options.torch_threads)
        config = replace(config, places=self.parts.open_devices(config, gpus, snapshot, signature.max_batch_size))
        self.recent = recent or RecentRequests(options.live_guard_requests if options.live_guard else 0)
        self._store = store
        self._options = options
        self._cores = cores or CoreShares()
        # Weak: otherwise every version that was ever loaded would stay, each held by the one before it.
        self._successor: weakref.ref[LoadedModel] | None = None
        self._by_default = True
        self._is_leaving = False
        self._tables: dict[str, TableEndpoint] = {}
        self._opening = threading.Lock()
        self._closed = False
        #: Scores copies of requests that this version answered on another snapshot; None for no shadow.
        self.shadow: Shadow | None = None
        most = options.max_sessions
        #: Decides how many sessions there are; None where their number is configured.
        self.scaling = None if most is None else SessionScaling(len(config.places), most)
        try:
            self._begin(config, published, snapshot, signature, sessions)
        except BaseException:
            self.parts.close()
            raise
        self.tap = tap

    def _begin(
        self,
        config: ModelConfig,
        published: PublishedVersion,
        snapshot: Snapshot,
        signature: ModelSignature,
        sessions: int | None,
    ) -> None:
        super().__init__(
            str(published.version),
            signature,
            complete_model_config(config, signature),
            SnapshotHistory(config.name, snapshot, max_waiting=config.queue.max_size),
            config.queue,
            config.options,
            lambda place: self.parts.pipeline(self._lookup_timeout_s, place, self.history.current),
            places=config.places,
            sessions=sessions,
            cores=self._cores,
            warm_ups=read_warm_ups(config.proto.model_warmup, signature, config.folder)
            or golden_warm_ups(published.golden()),
        )

    @property
    def snapshot(self) -> str:
        """Returns the id of the snapshot that is served; each answer names the one that it comes from."""
        return self.history.current.id

    @property
    def successor(self) -> LoadedModel | None:
        """Returns the version that replaced this one, as long as another object refers to it."""
        return None if self._successor is None else self._successor()

    @property
    def trouble(self) -> str:
        """Returns why it cannot answer until the server restarts; "" when it can."""
        return self.parts.devices.trouble

    @property
    def unready(self) -> str:
        """Returns why it should not get requests now, though it may answer many of them; "" when it should."""
        damage = self._store.ssd.damage.found
        return self.trouble or (
            f"its store is damaged, and another is filled to take its place: {damage}" if damage else ""
        )

    def answers(self, version: str) -> bool:
        """See Endpoint."""
        is_served = self._successor is None and not self._is_leaving and not self._closed
        return is_served and (self._by_default or version != "")

    def level_counts(self) -> list[tuple[ChainedFeature, np.ndarray]]:
        """Returns how many ids of requests read each level, by feature with a chain, as LevelCounts counts them."""
        if not self._chained:
            return []
        return list(zip(self._chained, self.group.levels_counted(), strict=True))

    def store_stats(self) -> StoreStats:
        """Returns hits by tier of this version's own requests without replays, and sizes of the whole store.

        The store may be shared with other versions.
        """
        return self._store.stats().counted(self.group.counted())

    @property
    def open_tables(self) -> list[TableEndpoint]:
        """Returns the endpoints of those tables that were requested as models."""
        return list(self._tables.values())

    def table(self, name: str) -> TableEndpoint:
        """Returns the endpoint of one of its tables. Raises NotFound naming the tables, Unavailable when closed."""
        found = self._tables.get(name)
        if found is not None:
            return found
        specs = {spec.name: spec for spec in self._store.tables}
        if name not in specs:
            raise NotFound(f"model {self.name!r} has no table {name[:100]!r}{did_you_mean(name[:100], specs)}")
        with self._opening:
            if self._closed:
                raise Unavailable(f"model {self.name!r} version {self.version} is shutting down")
            if name not in self._tables:
                self._tables[name] = TableEndpoint(
                    self, specs[name], self._store, self._options, self._cores, self._lookup_timeout_s
                )
            return self._tables[name]

    def judge(
        self, candidate: Snapshot, golden: Golden, claims: Claims, options: ModelOptions, against: LoadedModel | None
    ) -> ValidationReport:
        """Validates a snapshot that this version is to serve. Raises ParityError or GuardError with the reason.

        against: the version served now, whose recent requests are replayed on both; for None, golden requests alone
        decide.
        """
        if against is None:
            return validate(self.parts, None, candidate, golden, None, options=options, claims=claims)
        current = against.history.acquire()
        try:
            return validate(
                self.parts,
                current,
                candidate,
                golden,
                against.recent,
                options=options,
                claims=claims,
                current_parts=against.parts,
                pace=against.give_way,
            )
        finally:
            against.history.release(current)

    def serve(
        self,
        snapshot: Snapshot,
        covered: Iterable[str],
        canary: tuple[Snapshot, Iterable[str], float] | None = None,
        *,
        by_default: bool,
    ) -> None:
        """Serves `snapshot` from now on, also to the requests that were handed over before.

        covered: ids and names of the snapshots that it was made from. canary: another snapshot, what that covers, and
        the fraction of the requests that it answers. by_default: requests without a version may come here too.
        """
        self._point_at(snapshot, covered)
        if canary is not None:
            self.history.announce(canary[1], canary[0])
            self.history.set_canary(canary[0], canary[2])
        elif self.history.canary is not None:
            self.history.set_canary(None)
        self._by_default = by_default
        self._is_leaving = False
        if self._successor is not None:
            self._successor = None
            self.history.reopen()

    def stand_by(self, snapshot: Snapshot, covered: Iterable[str], successor: LoadedModel) -> None:
        """Keeps `snapshot` for a rollback; requests go to `successor`."""
        self._point_at(snapshot, covered)
        if self.history.canary is not None:
            self.history.set_canary(None)
        self.hand_over(successor)

    def leave(self) -> None:
        """Lets requests whose model was found at their admission find it again: this version is about to be closed."""
        self._is_leaving = True

    def hand_over(self, successor: LoadedModel) -> None:
        """Sends requests that come too late for this version, or wait for a newer one, to `successor` from now on."""
        self._successor = weakref.ref(successor)
        self.history.end()

    def close(self, timeout_s: float) -> bool:
        """Closes this endpoint and those of its tables as `Endpoint.close` does."""
        deadline = time.monotonic() + timeout_s
        with self._opening:
            self._closed = True
        self.history.set_shadow(None)
        ended = super().close(timeout_s) and self._wait_unpinned(deadline)
        left_s = max(0.0, deadline - time.monotonic())
        for table in self._tables.values():
            ended = table.close(left_s) and ended
        if ended:
            self.parts.close()
        return ended

    def _wait_unpinned(self, deadline: float) -> bool:
        """Waits until no work beside the requests uses a snapshot, and with it the store; returns False if one does."""
        while self.history.is_pinned and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return not self.history.is_pinned

    def _point_at(self, snapshot: Snapshot, covered: Iterable[str]) -> None:
        # Announced before the switch, so that no request waits for a snapshot that is served.
        self.history.announce(covered, snapshot)
        if self.history.current is not snapshot:
            self.history.switch(snapshot)

    @property
    def has_spare_cycles(self) -> bool:
        """Returns whether no request waits, and a core is left for work that nobody waits for."""
        return not self.queued and self._cores.has_spare

    def give_way(self) -> None:
        """Waits until there are spare cycles, for at most _MOST_WAIT_S: work that nobody waits for must end, too."""
        ends = time.monotonic() + _MOST_WAIT_S
        while not self.has_spare_cycles and time.monotonic() < ends:
            time.sleep(_PACE_LOOK_S)

    def answered(self, call: QueuedRequest, result: InferenceResult) -> None:
        """Keeps some requests for the live guard, and gives some to the shadow and to the tap."""
        tap = self.tap
        if tap is not None and (sampled := call.sampled or sample_one(call.request_id, tap.share)):
            _after_the_answer(call, partial(tap.offer, call, result, sampled, self.signature))
        shadow = self.shadow
        if shadow is not None and not call.canary and (picked := shadow.pick(call, self.queued > self.sessions)):
            _after_the_answer(call, partial(shadow.offer, call, result, picked, time.monotonic_ns()))
        if not self.recent.wants(call.arrived_ns):
            return
        features = call.features if isinstance(call.features, FeatureBatch) else None
        record = partial(self.recent.record, call.columns, call.batch, features, self.parts.engine, call.first_row)
        _after_the_answer(call, record)


def _after_the_answer(call: QueuedRequest, work: Callable[[], None]) -> None:
    """Does something with an answered request once its answer was sent, so that no caller waits for a copy."""
    if isinstance(call.sink, LoopSink):
        call.sink.loop.call_soon(work)
    else:
        work()
