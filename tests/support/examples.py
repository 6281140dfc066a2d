"""Sets the number of examples of a property: all of them, or the share that the profile `quick` takes."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

FULL = 100
QUICK = 20


def register_profiles() -> None:
    """Registers `full` and `quick` for --hypothesis-profile. Neither has a deadline: a busy machine would miss it."""
    settings.register_profile("full", max_examples=FULL, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("quick", settings.get_profile("full"), max_examples=QUICK)


def examples(count: int) -> int:
    """Returns `count` in the profile `full`, QUICK of each FULL of them in `quick`, and at least two."""
    return max(2, count * settings().max_examples // FULL)
