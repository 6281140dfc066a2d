"""What a call needs: a role, and what it is about. The tables of HTTP and of gRPC say it of each of their calls."""

from __future__ import annotations

from dataclasses import dataclass

from serving.security.principals import ADMIN, PREDICT, READ

# One model; the whole server, which a token of some models cannot ask for; or nothing in particular.
MODEL, SERVER, NOTHING = "model", "server", "nothing"


@dataclass(frozen=True, slots=True)
class Need:
    """roles: any of these bits is enough; 0: open to all. about: MODEL, SERVER or NOTHING. call: in the audit log."""

    roles: int
    about: str = NOTHING
    call: str = ""

    @property
    def is_control(self) -> bool:
        """Whether it changes what is served, and is written into the audit log."""
        return self.roles == ADMIN


OPEN = Need(0)
INFER = Need(PREDICT, MODEL, "infer")
KNOWN = Need(PREDICT | READ)
# About a model whose scores may be asked for; about one whose state is read.
ABOUT_MODEL = Need(PREDICT | READ, MODEL)
LOOK_AT_MODEL = Need(READ, MODEL)
LOOK_AT_SERVER = Need(READ, SERVER)
REGIONS = Need(PREDICT, SERVER)
# Only those who may see what exists learn what does not.
UNKNOWN = Need(READ, NOTHING)


def control_need(about: str, call: str = "") -> Need:
    """What a call of an operator needs. call: "" for the last segment of the path."""
    return Need(ADMIN, about, call)
