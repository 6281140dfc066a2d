"""Validates a candidate snapshot before any request may see it. Nothing here is visible to requests.

It checks in this order: the staged rows and the weights are those that the trainer names in the manifest; the golden
requests get the trainer's scores; recent real requests get scores that do not differ much from the current ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from serving.engine.device_checks import check_devices
from serving.engine.live_guard import GuardReport, judge
from serving.engine.recent import RecentRequest, RecentRequests
from serving.engine.replay import ModelParts, Replayed, check_user_side, replay_golden
from serving.gpu.tables import prepare_gpus
from serving.model_config.options import ModelOptions
from serving.pipeline.snapshot import Snapshot
from storage.checkpoint import Golden, Manifest
from storage.checkpoint.delta_manifest import DeltaManifest
from storage.checkpoint.fingerprint import fingerprint_hex, weights_fingerprint
from storage.checkpoint.lowered import LOWERED
from storage.errors import InvalidInput, ParityError
from storage.features import FeatureBatch
from storage.parallel import Pace


@dataclass(frozen=True)
class Claims:
    """Holds the fingerprints that a manifest gives of its contents."""

    #: The fingerprint of the weights; "" when the manifest has none.
    dense: str = ""
    #: The overlay where the rows are staged; None when they are not staged as one, and `tables` is not looked at.
    overlay: int | None = None
    #: The fingerprint of changed rows and removed ids by table name; a table that is not named has no change.
    tables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_delta(cls, manifest: DeltaManifest, overlay: int) -> Claims:
        """Returns the claims of a delta that is staged."""
        return cls(manifest.dense_fingerprint, overlay, {entry.name: entry.fingerprint for entry in manifest.tables})

    @classmethod
    def of_version(cls, manifest: Manifest) -> Claims:
        """Returns the claims of a full version, whose rows are compared while they are read."""
        return cls(manifest.dense_fingerprint)


@dataclass(frozen=True)
class ValidationReport:
    """Holds the figures with which a candidate passed."""

    golden_rows: int
    #: The largest difference to the trainer's own scores.
    golden_difference: float
    guard: GuardReport


def validate(
    parts: ModelParts,
    current: Snapshot | None,
    candidate: Snapshot,
    golden: Golden,
    recent: RecentRequests | None,
    *,
    options: ModelOptions,
    claims: Claims | None = None,
    current_parts: ModelParts | None = None,
    pace: Pace | None = None,
) -> ValidationReport:
    """Validates a candidate. Raises ParityError or GuardError with the reason; the candidate must then not be served.

    current: the snapshot served now, pinned by the caller; None at the start. current_parts: the parts of its version,
    where that is another than the candidate's. pace: called before weights are hashed, one after the other.
    """
    if claims is not None:
        check_claims(parts, candidate, claims, pace)
    prepare_gpus(parts.store, candidate.mask)
    on_gpu = parts.devices.first() is not None
    if options.precision in LOWERED or (options.precision == "tf32" and on_gpu):
        golden = golden.at_least(options.precision_tolerance)
    difference = 0.0
    # A candidate is validated on the devices that will answer; where no GPU is left, on the processor.
    on_processor = parts.devices.uses_processor or parts.devices.first() is None
    if on_processor:
        parts.choose_runner(candidate, golden, options.processor_runners)
        candidate.graph.pack()
        difference = replay_golden(parts, candidate, golden)
    check_user_side(parts, candidate, golden, None if on_processor else parts.devices.first())
    difference = max(difference, check_devices(parts, candidate, golden, options.precision))
    if not options.live_guard:
        report = GuardReport(skipped="live_guard is off")
    elif current is None or recent is None:
        report = GuardReport(skipped="nothing was served before")
    else:
        report = guard(current_parts or parts, current, parts, candidate, recent.requests(), options)
    return ValidationReport(golden.batch, difference, report)


def check_claims(parts: ModelParts, candidate: Snapshot, claims: Claims, pace: Pace | None = None) -> None:
    """Compares the staged contents with the manifest's fingerprints. Raises ParityError naming the table or weights."""
    if claims.dense:
        found = fingerprint_hex(weights_fingerprint(candidate.graph.weights(), pace))
        if found != claims.dense:
            raise ParityError(
                f"golden requests: the dense weights are not the trainer's: their fingerprint is {found}, published "
                f"was {claims.dense}; {candidate} is not served"
            )
    if claims.overlay is None:
        return
    for spec in parts.store.tables:
        expected = claims.tables.get(spec.name, fingerprint_hex(0))
        found = fingerprint_hex(parts.store.fingerprint(claims.overlay, spec.name))
        if found != expected:
            raise ParityError(
                f"golden requests: table {spec.name!r}: the staged rows and removed ids are not the trainer's: their "
                f"fingerprint is {found}, published was {expected}; {candidate} is not served"
            )


def guard(
    current_parts: ModelParts,
    current: Snapshot,
    candidate_parts: ModelParts,
    candidate: Snapshot,
    requests: Sequence[RecentRequest],
    options: ModelOptions,
) -> GuardReport:
    """Replays requests on both snapshots and judges the shift. Requests that one of them does not take are left out."""
    before: list[FeatureBatch] = []
    after: list[FeatureBatch] = []
    limit = min(current_parts.devices.max_rows, candidate_parts.devices.max_rows)
    for request in requests:
        if request.batch > limit:
            continue  # recorded by a version that took larger requests
        try:
            old = current_parts.recalled(request)
            new = old if candidate_parts is current_parts else candidate_parts.recalled(request)
        except InvalidInput:
            continue
        before.append(old)
        after.append(new)
    rows = sum(batch.batch for batch in before)
    if rows < options.live_guard_min_rows:
        return GuardReport(rows, skipped=f"{rows} rows of recent requests, {options.live_guard_min_rows} are needed")
    now = current_parts.score(before, current)
    then = candidate_parts.score(after, candidate)
    names = [entry.name for entry in current_parts.graph.outputs]
    there = {entry.name: index for index, entry in enumerate(candidate_parts.graph.outputs)}
    kept = [(index, there[name]) for index, name in enumerate(names) if name in there]
    return judge(
        [names[index] for index, _ in kept],
        Replayed([now.outputs[index] for index, _ in kept], now.ids, now.absent),
        Replayed([then.outputs[index] for _, index in kept], then.ids, then.absent),
        options,
    )
