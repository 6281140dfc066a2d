"""What a model's updates must not forget. How it is written and read stands in `state_file`.

The store's own marker "at" says what lies on SSD; this file says what is served on top of it, what is held and why.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer, model_serializer, model_validator

# Snapshots that were rolled back, and refusals: the oldest are forgotten past these.
MAX_REMEMBERED = 4096
MAX_QUARANTINE = 256

HexId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Kind = Literal["delta", "same", "version"]
_IDENTITY = ("id", "version", "sequence")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SavedSnapshot(_Part):
    """A snapshot as the state file names it. sequence: 0 for the version itself.

    kind: "delta"; "same": a version with exactly the rows of the snapshot before it; "version": one that was staged as
    its difference to it. origin: the folder that it was published in. visible_ms: from its appearance in the folder, or
    from when it was free to be taken, until requests saw it.
    """

    id: HexId
    version: int = Field(ge=1)
    sequence: int = Field(ge=0)
    kind: Kind = "delta"
    origin: str = ""
    published_unix_ms: int = 0
    visible_ms: float = 0.0

    @property
    def name(self) -> str:
        """The name that people write, such as 3.17."""
        return f"{self.version}.{self.sequence}"

    def identity(self) -> dict[str, Any]:
        """The part of it that says which snapshot it is."""
        return {key: getattr(self, key) for key in _IDENTITY}

    @model_validator(mode="before")
    @classmethod
    def _from_file(cls, content: Any) -> Any:
        """The file keeps the identity in an object of its own, `snapshot`, beside the rest."""
        if not isinstance(content, dict) or not isinstance(content.get("snapshot"), dict):
            return content
        return {**content["snapshot"], **{key: value for key, value in content.items() if key != "snapshot"}}

    @model_serializer
    def _to_file(self) -> dict[str, Any]:
        rest = {key: getattr(self, key) for key in ("kind", "origin", "published_unix_ms", "visible_ms")}
        return {"snapshot": self.identity(), **rest}


class StoreState(_Part):
    """One store. folder: its name. content: the version that its rows were loaded from, or have been relabelled to;
    content_snapshot: its snapshot, "" in older files.

    base: what SSD holds without the chain, unless the store's own marker says that a merge has come further. covered:
    the newest snapshots that the base was made from.
    """

    folder: str
    content: int
    content_snapshot: HexId | Literal[""] = ""
    base: SavedSnapshot
    chain: tuple[SavedSnapshot, ...] = ()
    served: HexId
    covered: tuple[SavedSnapshot, ...] = ()

    @property
    def snapshots(self) -> tuple[SavedSnapshot, ...]:
        """The base and the chain."""
        return (self.base, *self.chain)

    @field_serializer("covered")
    def _covered_to_file(self, covered: tuple[SavedSnapshot, ...]) -> list[dict[str, Any]]:
        return [each.identity() for each in covered]


class CanaryState(_Part):
    """fraction: of the requests. snapshot: None while the next good arrival is waited for. to: one named version."""

    fraction: float = Field(gt=0, le=1)
    snapshot: HexId | None = None
    to: str = ""


class BudgetState(_Part):
    """An operator's DRAM budget. instead_of: what config.pbtxt said then; when that changes, config.pbtxt holds."""

    dram_bytes: int = Field(ge=0, lt=2**63)
    instead_of: int | None = None


class SessionsState(_Part):
    """An operator's number of sessions. instead_of: what config.pbtxt said then, as with the budget."""

    count: int = Field(ge=1, le=256)
    instead_of: int


class Refusal(_Part):
    """Why a version or delta is not taken. stamp: of its files before they were read, see `stamps`; "": for good."""

    path: str
    snapshot: str = ""
    reason: str
    kind: str
    unix_ms: int
    stamp: str = ""


class ModelState(_Part):
    """Everything about one model. default: folder of the line that is served to who names no version.

    held: rolled-back snapshots and what descends from them. abandoned: held ones that the trainer has gone past; they
    are never taken again. quarantine: by digest of the manifest. allowed: by version, the inputs and outputs that may
    differ. repository: the model's folder that the snapshots were taken from, "" in older files.
    """

    repository: str = ""
    lines: tuple[StoreState, ...] = ()
    default: str = ""
    held: tuple[HexId, ...] = ()
    abandoned: tuple[HexId, ...] = ()
    paused: bool = False
    pinned: bool = False
    canary: CanaryState | None = None
    quarantine: dict[str, Refusal] = Field(default_factory=dict)
    allowed: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    budget: BudgetState | None = None
    sessions: SessionsState | None = None

    def session_count(self, configured: int) -> int:
        """How many sessions a version has: an operator's word, unless config.pbtxt was changed since."""
        sessions = self.sessions
        return configured if sessions is None or sessions.instead_of != configured else sessions.count

    def dram_bytes(self, configured: int | None) -> int | None:
        """The DRAM budget: an operator's, unless config.pbtxt was changed since, or that of config.pbtxt."""
        budget = self.budget
        return configured if budget is None or budget.instead_of != configured else budget.dram_bytes
