"""publish(): turns a module into a version in a model repository, or into a delta of what is there.

The embedding layers are taken out and become tables; the rest is exported. Both halves together must give the module's
own outputs, on the sample, on every golden request, and at batch 1, or nothing is published.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from storage.errors import ConfigError
from storage.features import FeatureSpec
from storage.specs import check_model_name
from trainer.embedding.whole_table import at_first
from trainer.evaluate import evaluation_mode
from trainer.progress import Display
from trainer.publishing.changes_publisher import ChangesPublisher, Outcome
from trainer.publishing.embedding_layers import tables_of
from trainer.publishing.lineage import Lineage
from trainer.publishing.policy import DeltaPolicy
from trainer.publishing.prepared_module import PreparedModule, unwrapped
from trainer.publishing.publish_version import GOLDEN_REQUESTS_AT_LEAST, STEPS, check_golden_requests, write_prepared
from trainer.publishing.row_types import RowTypes
from trainer.publishing.target import Target
from trainer.ranks import Ranks


def publish(
    module: nn.Module,
    sample_batch: object,
    repository: Path | str,
    *,
    name: str,
    spec: FeatureSpec | None = None,
    version: int | None = None,
    delta: bool | Literal["only"] = False,
    from_snapshot: str | None = None,
    max_batch_size: int = 1024,
    golden_requests: int = GOLDEN_REQUESTS_AT_LEAST,
    tolerance: float = 1e-6,
    metadata: Mapping[str, Any] | None = None,
    row_types: str | Mapping[str, str] | None = None,
    policy: DeltaPolicy | None = None,
    user_inputs: Sequence[str] = (),
    progress: bool = False,
) -> Path:
    """Publishes a module with embedding layers as repository/name/VERSION and returns that folder.

    repository: a folder, or a URL such as s3://bucket/models; then the folder returned is a copy on this machine.

    module: any nn.Module whose embedding layers are ours, nn.Embedding or nn.EmbeddingBag. It is published as in eval()
    and left in its mode. sample_batch: two rows or more. Without a spec: the argument of forward() (a tensor, a tuple
    of arguments, a mapping of names), ids as int64 or int32, dense features as float32; names of inputs come from it.
    With a spec: raw columns by input (storage.features.Column); the module is called with what the feature engine makes
    of them. version: None takes the next number. golden_requests: rows drawn from the sample, 256 or more. tolerance:
    how far a served output may be from the module's own, times the largest output if that is above 1; what rounding
    alone changes is always accepted. row_types: how rows are stored: fp32, fp16, bf16 or int8, for all tables or by
    table ("default" for the rest). user_inputs: the inputs that belong to the user, which a request for many items may
    send with one row; with a spec, its inputs say it (side).

    delta: publish what changed since the newest snapshot in the repository, as a delta, and return its folder. Where
    the graph, the features, the tables or their row types changed, or over half of the rows, a version is published
    instead; with "only" nothing is. When nothing changed, the folder of the newest snapshot is returned. from_snapshot:
    the snapshot, VERSION.SEQUENCE or an id, that the delta continues instead. policy: says when a delta holds all
    changes since the version, when a version follows it, and how much stays in the repository.

    Raises Unsupported for a module that cannot be cut, or no delta where only one was wanted; ParityError when the
    halves do not give the module's outputs. Several ranks that have the module's tables call it together.
    """
    return publish_module(
        module,
        sample_batch,
        repository,
        name=name,
        spec=spec,
        version=version,
        delta=delta,
        from_snapshot=from_snapshot,
        max_batch_size=max_batch_size,
        golden_requests=golden_requests,
        tolerance=tolerance,
        metadata=metadata,
        row_types=row_types,
        policy=policy,
        user_inputs=user_inputs,
        progress=progress,
    ).folder


def publish_module(
    module: nn.Module,
    sample_batch: object,
    repository: Path | str,
    *,
    name: str,
    spec: FeatureSpec | None = None,
    version: int | None = None,
    delta: bool | Literal["only"] = False,
    from_snapshot: str | None = None,
    max_batch_size: int = 1024,
    golden_requests: int = GOLDEN_REQUESTS_AT_LEAST,
    tolerance: float = 1e-6,
    metadata: Mapping[str, Any] | None = None,
    row_types: str | Mapping[str, str] | None = None,
    policy: DeltaPolicy | None = None,
    user_inputs: Sequence[str] = (),
    progress: bool = False,
) -> Outcome:
    """Publishes as `publish` does, and returns what became of it."""
    check_golden_requests(golden_requests)
    check_model_name(name)
    if delta and version is not None:
        raise ConfigError(
            "version numbers a version, and a delta goes on with the one that it changes", field="version"
        )
    if from_snapshot is not None and not delta:
        raise ConfigError("from_snapshot is for a delta; give delta=True too", field="from_snapshot")
    target = Target.of(repository, name)
    module = unwrapped(module)
    asked = RowTypes.of(row_types)

    def published() -> Outcome:
        with evaluation_mode(module), Display(visible=progress) as display, torch.no_grad():
            display.begin(f"publishing {name}: sample", STEPS + 1)
            prepared = PreparedModule.of(module, sample_batch, spec, user_inputs)
            if prepared.plan.spec.mean_tables:
                prepared.refresh_means(all_rows=True)
                prepared = PreparedModule.of(
                    module, sample_batch, spec, user_inputs
                )  # with the outputs that it gives now
            display.advance()
            if delta:
                asked.check_names(source.name for source in prepared.plan.tables)
                changes = ChangesPublisher(
                    prepared,
                    target,
                    display,
                    only=delta == "only",
                    policy=policy or DeltaPolicy(),
                    row_types=asked,
                    golden_requests=golden_requests,
                    tolerance=tolerance,
                    max_batch_size=max_batch_size,
                    metadata=dict(metadata or {}),
                )
                return changes.publish(from_snapshot)
            target.bring(Lineage())
            snapshot = secrets.token_hex(16)
            folder = write_prepared(
                prepared,
                target.model_dir,
                golden_requests=golden_requests,
                tolerance=tolerance,
                display=display,
                version=target.claim_version(snapshot, version),
                snapshot=snapshot,
                max_batch_size=max_batch_size,
                metadata=dict(metadata or {}),
                row_types=asked,
                erased_unix_ms=target.erased_unix_ms(),
            )
            target.publish(folder)
            display.say(f"published {target.shown(folder)}")
        return Outcome(folder, "version")

    tables = tables_of(module)
    return at_first(tables[0].ranks if tables else Ranks(), tables, published, target.model_dir)
