"""Emberline's own options of a model: the keys allowed under `parameters` of its config.pbtxt."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from storage.byte_sizes import ByteSize
from storage.errors import ConfigError

_CPUS = re.compile(r"\s*([0-9]{1,4})(?:-([0-9]{1,4}))?\s*")

# Ways to compute a dense graph: serving/pipeline/runners.py has those of the host, serving/gpu/runners.py of a GPU.
PROCESSOR_RUNNERS = ("eager", "script", "fused")
GPU_RUNNERS = ("eager", "compile")
RUNNER_NAMES = (*PROCESSOR_RUNNERS, "compile")

# The bound on retained snapshots. One of at most 63 overlays is always left for what is being staged, and some for what
# waits to be merged.
MAX_RETAINED = 48


def parse_cpus(value: Any) -> Any:
    """Parses numbers of processors, such as "0-3,8". Raises ValueError."""
    if not isinstance(value, str):
        return value
    cpus: set[int] = set()
    for part in value.split(","):
        found = _CPUS.fullmatch(part)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise ValueError("expected numbers of processors such as 0-3,8")
        cpus.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    if other := cpus - os.sched_getaffinity(0):
        raise ValueError(f"processor {min(other)} is not one that this process may use")
    return frozenset(cpus)


def parse_runners(value: Any) -> Any:
    """Parses names of runners, such as "eager,script". Raises ValueError."""
    if not isinstance(value, str):
        return value
    names = tuple(part.strip() for part in value.split(","))
    for name in names:
        if name not in RUNNER_NAMES:
            raise ValueError(f"no runner {name[:40]!r}; expected some of {', '.join(RUNNER_NAMES)}")
    return names


def parse_names(value: Any) -> Any:
    """Parses names of inputs, such as "user,device". Raises ValueError."""
    if not isinstance(value, str):
        return value
    names = tuple(part.strip() for part in value.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("expected names of inputs such as user,device, each once")
    return names


def parse_ready_when(value: Any) -> Any:
    """Parses `loaded`, `warm`, or a hit rate such as 0.95. Raises ValueError."""
    if value in ("loaded", "warm"):
        return value
    try:
        rate = float(value)
    except (TypeError, ValueError):
        rate = 0.0
    if not 0 < rate <= 1:
        raise ValueError("expected loaded, warm, or a hit rate of more than 0 and at most 1, such as 0.95")
    return rate


class ModelOptions(BaseModel):
    """Options of one model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: DRAM for the rows of all its versions together, index included; absent, all of them are held.
    dram_bytes: Annotated[ByteSize, Field(ge=0, lt=2**63)] | None = None
    #: loaded: rows may still be on their way into DRAM, and are read from SSD meanwhile. warm: DRAM is filled first. A
    #: hit rate: the rows in DRAM are expected to answer this share of lookups, by the hot ids.
    ready_when: Annotated[Literal["loaded", "warm"] | float, BeforeValidator(parse_ready_when)] = "loaded"
    #: Limit on the wait for a hit rate.
    ready_timeout_ms: Annotated[float, Field(gt=0, le=3_600_000)] = 60_000
    #: Memory for the rows of one version on each GPU; absent, a quarter of what is free there; 0: the host looks up all
    #: rows.
    hbm_bytes: Annotated[ByteSize, Field(ge=0, lt=2**63)] | None = None
    #: Placement of rows on several GPUs. replicate: each has the rows that are asked of it. shard: cold rows are on one
    #: of them, where the others read them.
    hbm_placement: Literal["replicate", "shard"] = "replicate"
    #: Limit on a request's wait for a session.
    timeout_ms: Annotated[float, Field(gt=0, le=3_600_000)] | None = None
    #: A request that would wait longer, by estimate, is refused at once.
    max_wait_ms: Annotated[float, Field(gt=0, le=3_600_000)] | None = None
    #: Rows that SSD has not delivered by then are unresolved.
    lookup_timeout_ms: Annotated[float, Field(gt=0, le=3_600_000)] | None = None
    #: Rule by which a session is chosen for a request.
    pick: Literal["least_loaded", "round_robin", "key"] = "least_loaded"
    #: Sessions follow the load from those of instance_group up to this number; absent: they do not.
    max_sessions: Annotated[int, Field(ge=1, le=256)] | None = None
    #: Processors of its sessions, such as "0-3,8".
    cpus: Annotated[frozenset[int], BeforeValidator(parse_cpus)] | None = None
    #: Share of the cores, in proportion to the other models', when there are not enough for all.
    share: Annotated[float, Field(gt=0, le=1000)] = 1.0
    #: Precision of matrix products: fp32, or bf16, fp16 and, on a GPU, tf32, where scores may differ by
    #: precision_tolerance from the trainer's.
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    #: Bound on the difference of scores by reduced precision.
    precision_tolerance: Annotated[float, Field(gt=0, le=1)] = 0.01
    #: Ways to compute the dense graph, compared when a version is loaded; the fastest is kept: eager anywhere, script
    #: and fused on the processor, compile on a GPU; by default all but compile, which takes long.
    runners: Annotated[tuple[str, ...], BeforeValidator(parse_runners)] = PROCESSOR_RUNNERS
    #: Handling of failures of a GPU. refuse: an error. eager: a batch that no CUDA graph holds runs operator by
    #: operator, other failures are errors. cpu: as eager, and the processor answers what a GPU cannot. Absent: cpu
    #: unless a group is KIND_GPU, then eager.
    on_gpu_failure: Literal["refuse", "eager", "cpu"] | None = None
    #: Threads of torch in one session.
    torch_threads: Annotated[int, Field(ge=1, le=256)] = 1
    #: Follow the model's folder, and apply updates that appear there.
    updates: bool = True
    #: Number of the last snapshots that a rollback reaches at once; their overlays stay unmerged.
    retain_snapshots: Annotated[int, Field(ge=1, le=MAX_RETAINED)] = 4
    #: DRAM that overlays may take.
    overlay_bytes: Annotated[ByteSize, Field(ge=0, lt=2**63)] = 256 << 20
    #: A full version with at most this share of changed rows is applied like a delta.
    version_reuse_share: Annotated[float, Field(ge=0, le=1)] = 0.3
    #: Limit on the wait of a request without a deadline for its `min_snapshot`.
    min_snapshot_timeout_ms: Annotated[float, Field(ge=0, le=3_600_000)] = 5000
    #: Replay recent requests on a new snapshot before it is served.
    live_guard: bool = True
    #: Number of recent requests that are kept.
    live_guard_requests: Annotated[int, Field(ge=1, le=65_536)] = 256
    #: With fewer different rows the live guard does not judge.
    live_guard_min_rows: Annotated[int, Field(ge=2, le=65_536)] = 64
    #: Bound on the population stability index between the scores of the served and the new snapshot.
    live_guard_max_psi: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5
    #: Bound on the shift of the mean: absolute when all scores lie in 0 to 1, else in standard deviations of the served
    #: snapshot's scores.
    live_guard_max_mean_shift: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.15
    #: Bound on the correlation of ranks.
    live_guard_min_correlation: Annotated[float, Field(ge=-1, le=1)] = 0.3
    #: Bound on the increase of the share of ids that have no row.
    live_guard_max_absent_increase: Annotated[float, Field(ge=0, le=1)] = 0.1
    #: With fewer compared requests there is no verdict about a shadow.
    shadow_min_requests: Annotated[int, Field(ge=1, le=10**9)] = 200
    #: Bound on the mean absolute shift of a shadow's scores: absolute when all scores of the main arm lie in 0 to 1,
    #: else in standard deviations of them.
    shadow_max_shift: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    #: Bound on the mean overlap of the top rows of a request.
    shadow_min_overlap: Annotated[float, Field(ge=0, le=1)] = 0.9
    #: Bound on how far the sum of a shadow's scores is off that of the main arm's, as a share, for scores in 0 to 1.
    shadow_max_miscalibration: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.05
    #: Bound on the time of a request on the shadow, in times of that on the main arm.
    shadow_max_slowdown: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.5

    #: Share of the requests that are logged with their scores; 0: none.
    feature_log_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    #: Inputs that are not logged.
    feature_log_drop: Annotated[tuple[str, ...], BeforeValidator(parse_names)] = ()
    #: Inputs of which a digest with the key of the server is logged.
    feature_log_hash: Annotated[tuple[str, ...], BeforeValidator(parse_names)] = ()
    #: Bytes of the files of logged requests, beyond which the oldest are deleted; likewise of the files of labels.
    feature_log_max_bytes: Annotated[ByteSize, Field(ge=1 << 16, lt=2**63)] = 1 << 30
    #: Files that are older are deleted.
    feature_log_max_age_s: Annotated[float, Field(gt=0, le=10 * 365 * 86_400)] = 7 * 86_400
    #: Limit on the time until a logged request is in a file.
    feature_log_every_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0

    #: Share of the requests whose scores are kept until their labels come; 0: no feedback is taken.
    feedback_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    #: Limit on the time from a request until its label.
    feedback_keep_s: Annotated[float, Field(gt=0, le=30 * 86_400)] = 3600.0
    #: Memory of the scores that are kept.
    feedback_max_bytes: Annotated[ByteSize, Field(ge=1 << 16, lt=2**63)] = 64 << 20
    #: A row without a label counts as negative after this time; absent: it counts as nothing.
    feedback_negative_after_s: Annotated[float, Field(gt=0, le=30 * 86_400)] | None = None

    #: Each update is a canary of this share of the requests first, and served to all once its live AUC is good enough;
    #: 0: updates are served to all at once.
    live_auc_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    #: Labelled rows of each arm that are waited for.
    live_auc_min_labels: Annotated[int, Field(ge=10, le=32_768)] = 1000
    #: How much lower the live AUC of the canary may be.
    live_auc_max_drop: Annotated[float, Field(ge=0, le=0.5)] = 0.005
    #: The output whose labels decide; "" for the model's first of one number a row.
    live_auc_output: str = ""
    #: A canary that is not judged by then is held.
    live_auc_timeout_s: Annotated[float, Field(gt=0, le=30 * 86_400)] = 86_400.0

    @property
    def processor_runners(self) -> tuple[str, ...]:
        """Runners to be compared on the processor."""
        return tuple(name for name in self.runners if name in PROCESSOR_RUNNERS)

    @property
    def gpu_runners(self) -> tuple[str, ...]:
        """Runners to be compared on a GPU."""
        return tuple(name for name in self.runners if name in GPU_RUNNERS)

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> ModelOptions:
        """Reads key -> text. Raises ConfigError that names the key, and the nearest known one for an unknown key."""
        for key in parameters:
            if key not in cls.model_fields:
                close = difflib.get_close_matches(key, cls.model_fields, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(cls.model_fields)}"
                raise ConfigError(f"parameters: unknown option {key!r}; {hint}", field=f"parameters.{key}")
        try:
            return cls.model_validate(dict(parameters))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = str(first["loc"][0])
            message = first["msg"].removeprefix("Value error, ")
            raise ConfigError(
                f"parameters.{key}: {message}, got {parameters[key]!r}", field=f"parameters.{key}"
            ) from None
