"""Defines what a model's updates must remember; `state_file` writes and reads it.

The store's own marker "at" says what is on SSD; this file says what is served on top of it, what is held and why.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_serializer,
    model_serializer,
    model_validator,
)

# Numbers of rolled-back snapshots and of refusals that are remembered; beyond them the oldest are forgotten.
MAX_REMEMBERED = 4096
MAX_QUARANTINE = 256

HexId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Kind = Literal["delta", "same", "version"]
_IDENTITY = ("id", "version", "sequence")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SavedSnapshot(_Part):
    """A snapshot as the state file names it."""

    id: HexId
    version: int = Field(ge=1)
    #: 0 for the version itself.
    sequence: int = Field(ge=0)
    #: "delta"; "same": a version with exactly the rows of the snapshot before it; "version": a version that was staged
    #: as its difference to the snapshot before it.
    kind: Kind = "delta"
    #: The folder that it was published in.
    origin: str = ""
    published_unix_ms: int = 0
    #: Milliseconds from its appearance in the folder, or from when it could be taken, until requests saw it.
    visible_ms: float = 0.0

    @property
    def name(self) -> str:
        """The name that people write, such as 3.17."""
        return f"{self.version}.{self.sequence}"

    def identity(self) -> dict[str, Any]:
        """Returns the part that says which snapshot it is."""
        return {key: getattr(self, key) for key in _IDENTITY}

    @model_validator(mode="before")
    @classmethod
    def _from_file(cls, content: Any) -> Any:
        """Merges the object `snapshot`, in which the file keeps the identity, with the rest."""
        if not isinstance(content, dict) or not isinstance(content.get("snapshot"), dict):
            return content
        return {**content["snapshot"], **{key: value for key, value in content.items() if key != "snapshot"}}

    @model_serializer
    def _to_file(self) -> dict[str, Any]:
        rest = {key: getattr(self, key) for key in ("kind", "origin", "published_unix_ms", "visible_ms")}
        return {"snapshot": self.identity(), **rest}


class StoreState(_Part):
    """The state of one store."""

    #: Name of its folder.
    folder: str
    #: The version that its rows were loaded from, or have been relabelled to.
    content: int
    #: The snapshot of that version; "" in older files.
    content_snapshot: HexId | Literal[""] = ""
    #: What SSD holds without the chain, unless the store's own marker says that a merge has come further.
    base: SavedSnapshot
    chain: tuple[SavedSnapshot, ...] = ()
    served: HexId
    #: The newest snapshots that the base was made from.
    covered: tuple[SavedSnapshot, ...] = ()

    @property
    def snapshots(self) -> tuple[SavedSnapshot, ...]:
        """The base and the chain."""
        return (self.base, *self.chain)

    @field_serializer("covered")
    def _covered_to_file(self, covered: tuple[SavedSnapshot, ...]) -> list[dict[str, Any]]:
        return [each.identity() for each in covered]


class CanaryState(_Part):
    """The canary of a model."""

    #: Fraction of the requests that it answers.
    fraction: float = Field(gt=0, le=1)
    #: None while the next good arrival is waited for.
    snapshot: HexId | None = None
    #: A version or snapshot that the operator named; "" for the next arrival.
    to: str = ""


class ShadowState(_Part):
    """The shadow of a model: what scores copies of its requests, and answers nobody."""

    #: A version or snapshot that the operator named.
    to: str
    #: Fraction of the requests that it scores.
    share: float = Field(gt=0, le=1)
    #: Rows of a request whose overlap is compared.
    top_k: int = Field(ge=1)
    #: When it takes no more requests; 0 for no end.
    until_unix_ms: int = Field(default=0, ge=0)
    #: None while it is not loaded. That of the version, for a version that follows its line.
    snapshot: HexId | None = None
    #: Whether it is a version that takes its own deltas.
    follows: bool = False
    #: Deltas that were staged for it alone, in their order; the last one is the snapshot.
    deltas: tuple[HexId, ...] = ()
    #: Why it cannot be loaded; "" when it can.
    error: str = ""


class BudgetState(_Part):
    """An operator's DRAM budget."""

    dram_bytes: int = Field(ge=0, lt=2**63)
    #: Value in config.pbtxt at that time; when that changes, config.pbtxt holds.
    instead_of: int | None = None


class SessionsState(_Part):
    """An operator's number of sessions."""

    count: int = Field(ge=1, le=256)
    #: Value in config.pbtxt at that time, as with the budget.
    instead_of: int


class Refusal(_Part):
    """The reason why a version or delta is not taken."""

    path: str
    snapshot: str = ""
    reason: str
    kind: str
    unix_ms: int
    #: Stamp of its files before they were read, see `stamps`; "" when it is refused for good.
    stamp: str = ""


class ModelState(_Part):
    """Everything that is remembered about one model."""

    #: The model's folder that the snapshots were taken from; "" in older files.
    repository: str = ""
    lines: tuple[StoreState, ...] = ()
    #: Folder of the store that answers requests without a version.
    default: str = ""
    #: Rolled-back snapshots and their descendants.
    held: tuple[HexId, ...] = ()
    #: Held snapshots that the trainer has gone past; they are never taken again.
    abandoned: tuple[HexId, ...] = ()
    paused: bool = False
    pinned: bool = False
    canary: CanaryState | None = None
    shadow: ShadowState | None = None
    #: Refusals by digest of the manifest.
    quarantine: dict[str, Refusal] = Field(default_factory=dict)
    #: The inputs and outputs that may differ, by version.
    allowed: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    budget: BudgetState | None = None
    sessions: SessionsState | None = None

    @model_serializer(mode="wrap")
    def _without_shadow(self, to_file: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out the shadow where there is none, so that an older server can read the file."""
        content: dict[str, Any] = to_file(self)
        return content if self.shadow is not None else {key: content[key] for key in content if key != "shadow"}

    @property
    def is_bound(self) -> bool:
        """True if an operator's word keeps something from being served."""
        return self.pinned or self.paused or bool(self.held)

    def fixed_sessions(self, configured: int) -> int | None:
        """Returns an operator's number of sessions; None without one, or where config.pbtxt was changed since."""
        sessions = self.sessions
        return None if sessions is None or sessions.instead_of != configured else sessions.count

    def session_count(self, configured: int) -> int:
        """Returns how many sessions a version has: an operator's number, or that of config.pbtxt."""
        return self.fixed_sessions(configured) or configured

    def dram_bytes(self, configured: int | None) -> int | None:
        """Returns the DRAM budget: an operator's, unless config.pbtxt was changed since, or that of config.pbtxt."""
        budget = self.budget
        return configured if budget is None or budget.instead_of != configured else budget.dram_bytes
