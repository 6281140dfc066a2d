"""Shortens the times of the alerts, so that a test or a drill need not wait for a quarter of an hour."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Times that a rule compares with, which no `for` has: as they stand there, and as a test has them.
SILENT = {"emberline_mirror_checked_unix_seconds > 120": "emberline_mirror_checked_unix_seconds > 3"}


def shortened(rules: str, *, held: str = "1s", window: str = "5s", others: Mapping[str, str] = SILENT) -> str:
    """Returns the text of alerts.yml with `for` and the windows of rates replaced; everything else is as it was.

    others: further texts to replace. Each has to be there, so that a test does not wait for a rule that has changed.
    """
    text = re.sub(r"^(\s+for: )\S+$", rf"\g<1>{held}", rules, flags=re.MULTILINE)
    text = re.sub(r"(rate\(\w+(?:\{[^}]*\})?)\[5m\]", rf"\1[{window}]", text)
    for before, after in others.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text
