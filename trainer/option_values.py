"""Values of options of `training`. Without torch, for commands that read a configuration and train nothing."""

from __future__ import annotations

import re
from typing import Literal

from storage.features.strict_model import did_you_mean

#: What travels between ranks.
Wire = Literal["fp32", "bf16", "fp16"]
#: What `training.device` may be; cuda:N names a GPU by its number.
DEVICES = ("cpu", "cuda", "auto")


def device_option(given: str) -> str:
    """Returns a device as it is written. Raises ValueError for anything else than `DEVICES` and cuda:N."""
    if given in DEVICES or re.fullmatch(r"cuda:[0-9]{1,3}", given):
        return given
    raise ValueError(f"is {given!r}, expected cpu, cuda, cuda:N (such as cuda:1) or auto{did_you_mean(given, DEVICES)}")
