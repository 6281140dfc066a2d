"""Publisher: versions and deltas of a module that continues to train.

A snapshot is published in two steps, so that the published state is one that the trainer can resume from: prepare()
closes the tables' changes and draws the snapshot; the caller saves a training checkpoint with `lineage`; write() writes
it. After a crash in between, the checkpoint's lineage has it pending and write() makes it anew.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from storage.checkpoint import PublishedVersion
from storage.checkpoint.fingerprint import fingerprint_hex, weights_fingerprint
from storage.checkpoint.install import make_place
from storage.errors import CheckpointError, ConfigError, InvalidInput, NotFound, Unsupported
from storage.features import Column, FeatureSpec
from storage.specs import check_model_name
from trainer.embedding.whole_table import at_first
from trainer.evaluate import evaluation_mode
from trainer.event_times import TrainedTimes, event_times
from trainer.progress import Display
from trainer.publishing.delta_content import is_unchanged, live_weights, tracked_changes
from trainer.publishing.delta_golden import POOL_ROWS
from trainer.publishing.delta_writer import DeltaWriter
from trainer.publishing.embedding_layers import TableSource, tables_of
from trainer.publishing.lineage import Lineage, Pending
from trainer.publishing.pending import drawn, expire, settled, with_delta, with_version
from trainer.publishing.policy import DeltaPolicy, Due
from trainer.publishing.prepared_module import PreparedModule, unwrapped
from trainer.publishing.publish_version import STEPS, check_golden_requests, write_prepared
from trainer.publishing.repository import find_delta, find_version, read_version
from trainer.publishing.row_types import RowTypes, row_types_of
from trainer.publishing.target import Target
from trainer.ranks import Ranks

#: "erasure": a version, behind a delta where one is possible, that replaces every snapshot before it.
WantedKind = Literal["auto", "version", "delta", "cumulative", "erasure"]


class Publisher:
    """Publishes snapshots of `module` into repository/name. Not thread-safe, and nothing may train during a call.

    repository: a folder, or a URL such as s3://bucket/models, of which a copy is kept on this machine.
    module, sample, name, spec, max_batch_size, golden_requests, tolerance, metadata, user_inputs: as for `publish`.
    row_types too, and tables that it does not name keep the row type of the last publish. policy: decides what "auto"
    makes, and what stays in the repository. lineage: that of the checkpoint that is resumed.
    """

    def __init__(
        self,
        module: nn.Module,
        sample: object,
        repository: Path | str,
        *,
        name: str,
        spec: FeatureSpec | None = None,
        max_batch_size: int = 1024,
        golden_requests: int = 256,
        tolerance: float = 1e-6,
        metadata: Mapping[str, Any] | None = None,
        row_types: str | Mapping[str, str] | None = None,
        policy: DeltaPolicy | None = None,
        user_inputs: Sequence[str] = (),
        lineage: Lineage | None = None,
        progress: bool = False,
    ) -> None:
        check_golden_requests(golden_requests)
        check_model_name(name)
        self._module = unwrapped(module)
        self._sample = sample
        self._target = Target.of(repository, name)
        self._model_dir = self._target.model_dir
        self._spec = spec
        self._user_inputs = tuple(user_inputs)
        self._max_batch_size = max_batch_size
        self._golden_requests = golden_requests
        self._tolerance = tolerance
        self._metadata = dict(metadata or {})
        self._row_types = RowTypes.of(row_types)
        self._policy = policy or DeltaPolicy()
        self._lineage = lineage or Lineage()
        self._progress = progress
        self._offered: deque[Mapping[str, Column]] = deque()
        self._prepared: PreparedModule | None = None
        self._writer: DeltaWriter | None = None
        # The version that was found to have the module's graph.
        self._graph_of = ""
        self._written: tuple[Path, ...] = ()
        # True if the pending snapshot was drawn here and never written: it cannot lie in the repository.
        self._fresh = False

    @property
    def lineage(self) -> Lineage:
        """The snapshots published so far and the pending one. Save it with the training state."""
        return self._lineage

    @property
    def folder(self) -> Path:
        """The folder that snapshots are written into."""
        return self._model_dir

    @property
    def written(self) -> tuple[Path, ...]:
        """Folders of the snapshot that was written last, a delta before the version of its content."""
        return self._written

    def offer(self, columns: Mapping[str, Column]) -> None:
        """Takes raw rows that were just trained on, by input of the spec, for golden requests that reach changed rows.

        They are borrowed until 2,048 newer rows have come. Raises InvalidInput for an input that is not there.
        """
        if self._spec is None:
            raise InvalidInput("offer() takes raw rows by the inputs of a spec; make the publisher with one")
        for entry in self._spec.inputs:
            if entry.name not in columns:
                raise InvalidInput(f"offer(): the input {entry.name!r} is not there", field=entry.name)
        if not _rows_of(columns):  # a rank without a row of the last batch
            return
        self._offered.append({entry.name: columns[entry.name] for entry in self._spec.inputs})
        while sum(map(_rows_of, self._offered)) - _rows_of(self._offered[0]) >= POOL_ROWS:
            self._offered.popleft()

    def renew_sample(self, sample: object) -> None:
        """Takes another sample, of which the golden requests of the next version are made."""
        self._sample = sample

    def forget_offered(self) -> None:
        """Forgets the rows that were offered; call it when training continues on other rows."""
        self._offered.clear()

    def prepare(
        self,
        kind: WantedKind = "auto",
        *,
        from_snapshot: str | None = None,
        version: int | None = None,
        times: TrainedTimes | None = None,
    ) -> Pending:
        """Erases expired rows, closes the changes so far and draws the next snapshot, which becomes `lineage.pending`.

        from_snapshot: the snapshot, by id or VERSION.SEQUENCE, that the new one continues; default: the newest.
        version: the number of a version; default: the next free one. times: those of the rows that were trained on, of
        which the manifest has a summary; they begin anew. What was pending and never written is dropped: its
        changes are in the new snapshot. Raises NotFound for an unknown snapshot, Unsupported for a delta of
        nn.Embedding layers, CheckpointError when nothing can be written to the repository: then nothing is pending
        either.
        """
        make_place(self._model_dir)
        self._target.bring(self._lineage)
        lineage = settled(self._lineage, self._model_dir)
        if from_snapshot is not None:
            lineage = lineage.up_to(lineage.find(from_snapshot).snapshot)
        prepared = self._ready(lineage)
        due = self._due(kind, lineage, rebased=from_snapshot is not None)
        self._check_number(due, version)
        if due != "version" and (path := prepared.plain_layer()) is not None:
            raise Unsupported(
                f"table {path!r}: rows of torch's own embedding layers are not tracked, so there are no deltas of "
                "them; use trainer.Embedding or trainer.EmbeddingBag, or publish versions"
            )
        tables = prepared.tables
        if kind != "erasure":
            expire(lineage, tables, self._policy.expire_after)
        prepared.refresh_means(all_rows=due in ("version", "compaction"))
        stamps = {name: table.advance() for name, table in tables.items()}
        if lineage.published:
            oldest = lineage.published[0].stamps
            for name, table in tables.items():
                table.forget_removed(oldest.get(name, 0))
        pending = drawn(due, lineage, self._model_dir, stamps, version, times)
        if kind == "erasure":
            base = self._base(lineage)
            now_ms = max(pending.created_unix_ms, 0 if base is None else base.manifest.published_unix_ms + 1)
            pending, lineage = replace(pending, created_unix_ms=now_ms), replace(lineage, erased_unix_ms=now_ms)
        last = max(lineage.last_sequence, pending.sequence)
        self._lineage = replace(lineage, last_sequence=last, pending=pending)
        if times is not None:
            times.published(version=due in ("version", "compaction"))
        self._written, self._fresh = (), True
        return pending

    def write(self) -> Path:
        """Writes the pending snapshot and returns its folder; called again, it finds the folder that is already there.

        For a delta that is followed by a version of the same content it returns the version; `written` names both.
        Raises ParityError when the module's scores are not those of the halves that are published, CheckpointError when
        nothing was prepared.
        """
        pending, lineage = self._lineage.pending, self._lineage
        if pending is None:
            if not self._written:
                raise CheckpointError("nothing is pending; call prepare() before write()")
            return self._written[-1]
        again, self._fresh = not self._fresh, False
        if again:
            self._target.bring(lineage)
        with self._quiet(), Display(visible=self._progress) as display:
            if pending.kind == "version":
                number = pending.version
                folder, lineage = self._write_version(lineage, pending, pending.snapshot, number, again, display)
                written = [folder]
            else:
                folder, lineage = self._write_delta(lineage, pending, again, display)
                written = [folder]
                if pending.compaction:
                    folder, lineage = self._write_version(lineage, pending, pending.compaction, 0, again, display)
                    written.append(folder)
            for path in written:
                display.say(f"published {self.shown(path)}")
        self._lineage = lineage
        self._written = tuple(written)
        if pending.kind != "delta" or pending.compaction:
            self._target.retain(lineage, self._policy)
        return folder

    def remove_older(self, holds: Callable[[Path], bool]) -> list[str]:
        """Removes every snapshot before the newest, a version, from the repository and from the lineage.

        holds: returns whether a version of another trainer, by its folder, is to go too. Returns what has to stay for
        now, because a fleet serves it.
        """
        stays = self._target.erase(self._lineage, holds)
        if not stays:
            self._lineage = self._lineage.of_newest()
        return stays

    def publish(
        self, kind: WantedKind = "auto", *, from_snapshot: str | None = None, version: int | None = None
    ) -> Path:
        """Calls prepare() and write(), for a loop that keeps no training checkpoints.

        Several ranks that have the module's tables call it together, and the first one publishes the rows of all.
        """

        def published() -> tuple[Path, Lineage, tuple[Path, ...]]:
            self.prepare(kind, from_snapshot=from_snapshot, version=version)
            return self.write(), self._lineage, self._written

        tables = tables_of(self._module)
        ranks = tables[0].ranks if tables else Ranks()
        folder, self._lineage, self._written = at_first(ranks, tables, published, self._model_dir)
        return folder

    def shown(self, folder: Path) -> str:
        """Returns where people find a snapshot: its folder, or its URL in an object store."""
        return self._target.shown(folder)

    def published_path(self) -> Path | None:
        """Returns the folder of the newest snapshot; None when the repository does not hold it as it is asked for now.

        Another spec, another graph, other row types and other absent rows need a new version.
        """
        self._target.bring(self._lineage)
        newest, base = self._lineage.newest, self._base(self._lineage)
        if newest is None or base is None:
            return None
        self._ready(self._lineage)
        if not self._has_our_spec(base) or not self._stores_alike(base) or not self._has_our_graph(self._lineage):
            return None
        if newest.sequence == 0:
            return base.path
        delta = find_delta(base.path, newest.snapshot)
        return None if delta is None else delta.path

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Puts the module in eval() and disables gradients for the block."""
        with evaluation_mode(self._module), torch.no_grad():
            yield

    def _ready(self, lineage: Lineage) -> PreparedModule:
        """Returns the planned module; the first call sets its tables' stamps behind all that the lineage knows."""
        if self._prepared is None:
            with self._quiet():
                self._prepared = PreparedModule.of(self._module, self._sample, self._spec, self._user_inputs)
            self._row_types.check_names(source.name for source in self._prepared.plan.tables)
        for name, table in self._prepared.tables.items():
            known = [entry.stamps.get(name, 0) for entry in lineage.published]
            table.set_stamp(max([table.stamp, *(stamp + 1 for stamp in known)]))
        return self._prepared

    def _due(self, kind: WantedKind, lineage: Lineage, *, rebased: bool) -> Due:
        if kind == "version":
            return kind
        base = self._base(lineage)
        if kind == "erasure":
            return "compaction" if self._may_go_on(lineage, base) and self._has_no_plain_layer() else "version"
        if kind == "auto":
            if not self._may_go_on(lineage, base):
                return "version"
            return "delta" if rebased else self._policy.next_kind(lineage)
        if base is None:
            what = f"version {lineage.version} is not there" if lineage.version else "nothing was published yet"
            raise NotFound(f"{self._model_dir}: {what}, so there is nothing for a delta to change; publish a version")
        if not self._has_our_spec(base):
            raise _other_spec(base)
        self._check_storage(base)
        self._check_graph(lineage, base)
        return kind

    def _may_go_on(self, lineage: Lineage, base: PublishedVersion | None) -> bool:
        """Returns whether a delta can lead on from the lineage's version."""
        if base is None or not self._has_our_spec(base) or not self._stores_alike(base):
            return False
        return self._has_our_graph(lineage)

    def _has_no_plain_layer(self) -> bool:
        assert self._prepared is not None
        return self._prepared.plain_layer() is None

    def _has_our_spec(self, version: PublishedVersion) -> bool:
        """Returns whether a version makes the same features of raw columns as the module takes now."""
        assert self._prepared is not None
        return version.spec == self._prepared.plan.spec

    def _has_our_graph(self, lineage: Lineage) -> bool:
        """Returns whether the graph of the lineage's version computes what the module does; each is compared once."""
        assert self._prepared is not None
        if self._graph_of != lineage.base and self._prepared.plain_layer() is None:
            with self._quiet():
                if not self._delta_writer(lineage).is_current(self._tolerance):
                    return False
            self._graph_of = lineage.base
        return True

    def _check_graph(self, lineage: Lineage, version: PublishedVersion) -> None:
        if not self._has_our_graph(lineage):
            raise Unsupported(
                f"{version.path}: the model computes something else with the same weights than the graph of this "
                "version, as after a change of data.negative_sampling or of the model's code, and a delta cannot "
                "change that; publish a version (emberline publish), or put the change back"
            )

    def _stores_alike(self, version: PublishedVersion) -> bool:
        """Returns whether a version has the row types that are asked for, and the absent rows that the tables have."""
        return self._row_types.first_other(version) is None and self._other_absent(version) is None

    def _other_absent(self, version: PublishedVersion) -> TableSource | None:
        """Returns a table whose absent rows are not those of a version."""
        assert self._prepared is not None
        own = {spec.name: spec.absent for spec in version.tables}
        sources = self._prepared.plan.tables
        return next((each for each in sources if own.get(each.name, each.absent) != each.absent), None)

    def _check_storage(self, version: PublishedVersion) -> None:
        if (source := self._other_absent(version)) is not None:
            raise Unsupported(
                f"table {source.name!r}: ids without a row read as {source.absent}, but not in {version.path}, and a "
                "delta cannot change that; publish a version (emberline publish)"
            )
        if (other := self._row_types.first_other(version)) is not None:
            table, asked, has = other
            raise Unsupported(
                f"table {table!r}: its rows are to be {asked}, those of {version.path} are {has}, and a delta cannot "
                "change that; publish a version (emberline publish)"
            )

    def _base(self, lineage: Lineage) -> PublishedVersion | None:
        """Returns the version that deltas of the lineage lie in; None when it is not in this repository."""
        version = read_version(self._model_dir, lineage.version) if lineage.version else None
        return version if version is not None and version.snapshot == lineage.base else None

    def _check_number(self, due: Due, version: int | None) -> None:
        if version is None:
            return
        if due != "version" or version < 1:
            raise ConfigError(
                f"version is {version}: a number, 1 or more, is for a version; a delta goes on with the version that "
                "it changes",
                field="version",
            )
        if os.path.lexists(self._model_dir / str(version)):
            raise CheckpointError(f"{self._model_dir / str(version)} exists; choose another number, or none")

    def _write_delta(self, lineage: Lineage, pending: Pending, again: bool, display: Display) -> tuple[Path, Lineage]:
        delta = find_delta(self._model_dir / str(pending.version), pending.snapshot) if again else None
        if delta is None:
            self._ready(lineage)
            writer = self._delta_writer(lineage)
            self._check_graph(lineage, writer.version)
            sequence = self._target.claim_sequence(pending.version, pending.snapshot, pending.sequence)
            delta = writer.write(
                replace(pending, sequence=sequence),
                tracked_changes(self._ready(lineage).tables, pending.since, row_types_of(writer.version)),
                pools=self._pools(),
                golden_requests=self._golden_requests,
                tolerance=self._tolerance,
                metadata=self._metadata,
                display=display,
            )
        self._target.publish(delta.path)
        return delta.path, with_delta(lineage, pending, delta)

    def _pools(self) -> tuple[Mapping[str, Column], ...]:
        """Returns the raw rows that were offered, the last ones first."""
        return tuple(reversed(self._offered))

    def _delta_writer(self, lineage: Lineage) -> DeltaWriter:
        """Returns the writer that holds the graph of the lineage's version, which takes long to load."""
        assert self._prepared is not None
        writer = self._writer
        if writer is None or writer.version.snapshot != lineage.base or writer.prepared is not self._prepared:
            version = self._base(lineage)
            if version is None:
                raise NotFound(
                    f"{self._model_dir / str(lineage.version)} is not there any more, and what is to be published is "
                    "a delta of it; publish a version (emberline publish)"
                )
            if not self._has_our_spec(version):
                raise _other_spec(version)
            self._check_storage(version)
            self._writer = writer = DeltaWriter(self._prepared, version, self._policy.full_weights_every)
        return writer

    def _write_version(
        self, lineage: Lineage, pending: Pending, snapshot: str, number: int, again: bool, display: Display
    ) -> tuple[Path, Lineage]:
        version = find_version(self._model_dir, snapshot) if again else None
        if version is None:
            equals = self._equal_snapshot(lineage)
            # Plan again, with the outputs that the module gives now.
            self._prepared = PreparedModule.of(self._module, self._sample, self._spec, self._user_inputs)
            display.begin(f"publishing {self._model_dir.name}", STEPS)
            parent = lineage.newest
            folder = write_prepared(
                self._prepared,
                self._model_dir,
                golden_requests=self._golden_requests,
                tolerance=self._tolerance,
                display=display,
                pools=self._pools(),
                version=self._target.claim_version(snapshot, number or None),
                max_batch_size=self._max_batch_size,
                metadata=self._metadata,
                row_types=self._row_types,
                before=self._base(lineage),
                snapshot=snapshot,
                parent=None if parent is None else parent.snapshot,
                equals=equals,
                descends_from=lineage.line()[::-1],
                created_unix_ms=pending.created_unix_ms,
                erased_unix_ms=max(lineage.erased_unix_ms, self._target.erased_unix_ms()),
                events=event_times(pending.compaction_events if pending.compaction else pending.events),
            )
            version, self._graph_of = find_version(self._model_dir, snapshot), snapshot
            if version is None:
                raise CheckpointError(f"{folder}: was written and cannot be read; is the disk sound?")
        self._target.publish(version.path)
        return version.path, with_version(lineage, pending, version)

    def _equal_snapshot(self, lineage: Lineage) -> str | None:
        """Returns the newest snapshot if tables and weights are still what they were in it."""
        newest = lineage.newest
        base = self._base(lineage)
        if newest is None or base is None:
            return None
        prepared = self._ready(lineage)
        if not self._has_our_spec(base) or not self._stores_alike(base) or not self._has_our_graph(lineage):
            return None
        if prepared.plain_layer() is not None or not is_unchanged(prepared.tables, newest.stamps):
            return None
        try:
            weights = live_weights(prepared.half, self._delta_writer(lineage).graph)
        except CheckpointError:  # other weights than those of the version
            return None
        return newest.snapshot if fingerprint_hex(weights_fingerprint(weights)) == newest.dense else None


def _other_spec(version: PublishedVersion) -> Unsupported:
    return Unsupported(
        f"{version.path}: its inputs and features are not those of the model any more, and a delta cannot change "
        "them; publish a version (emberline publish)"
    )


def _rows_of(columns: Mapping[str, Column]) -> int:
    return max((column.rows for column in columns.values()), default=0)
