"""Defines what a request needs: a role, and the scope it must cover. The tables of HTTP and gRPC use these needs."""

from __future__ import annotations

from dataclasses import dataclass

from serving.security.principals import ADMIN, FEEDBACK, PREDICT, READ

# Scopes: one model; the whole server, which is out of reach for a token of some models; or nothing in particular.
MODEL, SERVER, NOTHING = "model", "server", "nothing"


@dataclass(frozen=True, slots=True)
class Need:
    """The permission that a call needs."""

    #: Bits of roles, any of which is enough; 0: no check.
    roles: int
    #: Scope: MODEL, SERVER or NOTHING.
    about: str = NOTHING
    #: Name of the call in the log.
    call: str = ""
    #: Whether all of these roles are needed, and not any of them.
    all_roles: bool = False

    def is_met(self, roles: int) -> bool:
        """Returns whether a caller with these roles meets it."""
        found = roles & self.roles
        return found == self.roles if self.all_roles else found != 0

    @property
    def is_for_everybody(self) -> bool:
        """True if a server without access rules lets every caller do it."""
        return not self.roles or bool(self.roles & (PREDICT | READ))

    @property
    def is_control(self) -> bool:
        """True if the call changes what is served, and is written into the audit log."""
        return self.roles == ADMIN


OPEN = Need(0)
INFER = Need(PREDICT, MODEL, "infer")
KNOWN = Need(PREDICT | READ)
# Needs about one model: the first is met by callers that may ask for its scores or see it, the second by those that may
# see it.
ABOUT_MODEL = Need(PREDICT | READ, MODEL)
LOOK_AT_MODEL = Need(READ, MODEL)
# Whoever explains a request sees its score, and what the model knows of its ids.
EXPLAIN = Need(PREDICT | READ, MODEL, "explain", all_roles=True)
# The same of a golden request, which holds raw features that the model was trained on.
SAMPLE = Need(PREDICT | READ, MODEL, "sample", all_roles=True)
# Labels change what is promoted and trained, so whoever may ask for scores may not send them by that alone.
GIVE_FEEDBACK = Need(FEEDBACK | ADMIN, MODEL, "feedback")
LOOK_AT_SERVER = Need(READ, SERVER)
# The console shows the models that its caller may see.
WATCH = Need(READ, NOTHING, "console")
REGIONS = Need(PREDICT, SERVER)
# The need of an unknown path: only callers that may see what exists learn that it does not.
UNKNOWN = Need(READ, NOTHING)


def control_need(about: str, call: str = "") -> Need:
    """Returns the need of an operator's call. call: "" for the last segment of the path."""
    return Need(ADMIN, about, call)
