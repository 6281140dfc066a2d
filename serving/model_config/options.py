"""Our own options of a model: what may stand under `parameters` of its config.pbtxt."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from serving.byte_sizes import ByteSize
from storage.errors import ConfigError

_CPUS = re.compile(r"\s*([0-9]{1,4})(?:-([0-9]{1,4}))?\s*")

# Ways to compute a dense graph: serving/pipeline/runners.py has those of the host, serving/gpu/runners.py of a GPU.
PROCESSOR_RUNNERS = ("eager", "script")
GPU_RUNNERS = ("eager", "compile")
RUNNER_NAMES = (*PROCESSOR_RUNNERS, "compile")

# One of at most 63 overlays is always left for what is being staged, and some for what waits to be merged.
MAX_RETAINED = 48


def parse_cpus(value: Any) -> Any:
    """Numbers of processors from "0-3,8". Raises ValueError."""
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
    """Names of runners from "eager,script". Raises ValueError."""
    if not isinstance(value, str):
        return value
    names = tuple(part.strip() for part in value.split(","))
    for name in names:
        if name not in RUNNER_NAMES:
            raise ValueError(f"no runner {name[:40]!r}; expected some of {', '.join(RUNNER_NAMES)}")
    return names


class ModelOptions(BaseModel):
    """Options of one model.

    dram_bytes: what the rows of all its versions together may take in DRAM, index included; absent, all of them are
    held. ready_when: loaded (rows may still be on their way into DRAM, and are read from SSD meanwhile) or warm (DRAM
    is filled first). hbm_bytes: what the rows of one version may take on each GPU; absent, a quarter of what is free
    there, 0: the host looks up all rows. hbm_placement: of several GPUs: replicate (each has the rows that are asked of
    it) or shard (cold rows are on one of them, where the others read them). timeout_ms: how long a request may wait for
    a session. max_wait_ms: one that would wait longer, by estimate, is refused at once. lookup_timeout_ms: rows that
    SSD has not delivered by then are unresolved.

    precision: of matrix products: fp32, or bf16, fp16 and, on a GPU, tf32, where scores may differ by
    precision_tolerance from the trainer's. on_gpu_failure: refuse (an error), eager (what no CUDA graph holds runs
    operator by operator, other failures are errors) or cpu (that, and the processor answers what a GPU cannot); without
    it, cpu unless a group is KIND_GPU, then eager.
    runners: ways to compute the dense graph, compared when a version is loaded; the fastest is kept: eager anywhere,
    script on the processor, compile on a GPU; by default all but compile, which takes its time. torch_threads: of
    one session. pick: which session a request goes to. cpus: processors of its sessions, such as
    "0-3,8". share: of the cores, beside the other models', when there are not enough for all.

    updates: follow the model's folder, and apply what appears there. retain_snapshots: how many of the last snapshots
    a rollback reaches at once; their overlays stay unmerged. overlay_bytes: what overlays may take in DRAM.
    version_reuse_share: a full version with at most this share of changed rows is applied like a delta.
    min_snapshot_timeout_ms: how long a request without a deadline waits for its `min_snapshot`.

    live_guard: replay recent requests on a new snapshot before it is served. live_guard_requests: how many are kept.
    live_guard_min_rows: with fewer different rows there is no judgement. The bounds between the scores of now and of
    then: live_guard_max_psi (population stability index), live_guard_max_mean_shift (absolute when all scores lie in
    0 to 1, else in standard deviations of the scores of now), live_guard_min_correlation (of ranks),
    live_guard_max_absent_increase (share of ids that have no row).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dram_bytes: Annotated[ByteSize, Field(ge=0, lt=2**63)] | None = None
    ready_when: Literal["loaded", "warm"] = "loaded"
    hbm_bytes: Annotated[ByteSize, Field(ge=0, lt=2**63)] | None = None
    hbm_placement: Literal["replicate", "shard"] = "replicate"
    timeout_ms: Annotated[float, Field(gt=0, le=3_600_000)] | None = None
    max_wait_ms: Annotated[float, Field(gt=0, le=3_600_000)] | None = None
    lookup_timeout_ms: Annotated[float, Field(gt=0, le=3_600_000)] | None = None
    pick: Literal["least_loaded", "round_robin", "key"] = "least_loaded"
    cpus: Annotated[frozenset[int], BeforeValidator(parse_cpus)] | None = None
    share: Annotated[float, Field(gt=0, le=1000)] = 1.0
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    precision_tolerance: Annotated[float, Field(gt=0, le=1)] = 0.01
    runners: Annotated[tuple[str, ...], BeforeValidator(parse_runners)] = PROCESSOR_RUNNERS
    on_gpu_failure: Literal["refuse", "eager", "cpu"] | None = None
    torch_threads: Annotated[int, Field(ge=1, le=256)] = 1
    updates: bool = True
    retain_snapshots: Annotated[int, Field(ge=1, le=MAX_RETAINED)] = 4
    overlay_bytes: Annotated[ByteSize, Field(ge=0, lt=2**63)] = 256 << 20
    version_reuse_share: Annotated[float, Field(ge=0, le=1)] = 0.3
    min_snapshot_timeout_ms: Annotated[float, Field(ge=0, le=3_600_000)] = 5000
    live_guard: bool = True
    live_guard_requests: Annotated[int, Field(ge=1, le=65_536)] = 256
    live_guard_min_rows: Annotated[int, Field(ge=2, le=65_536)] = 64
    live_guard_max_psi: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5
    live_guard_max_mean_shift: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.15
    live_guard_min_correlation: Annotated[float, Field(ge=-1, le=1)] = 0.3
    live_guard_max_absent_increase: Annotated[float, Field(ge=0, le=1)] = 0.1

    @property
    def processor_runners(self) -> tuple[str, ...]:
        """Those to be compared on the processor."""
        return tuple(name for name in self.runners if name in PROCESSOR_RUNNERS)

    @property
    def gpu_runners(self) -> tuple[str, ...]:
        """Those to be compared on a GPU."""
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
