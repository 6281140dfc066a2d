"""Values that travel between ranks in 16 bits: how much rounding may change them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainer.config import TrainConfig, parse_content
from trainer.wire import WIRES, pack, unpack


@pytest.mark.parametrize(("name", "error"), [("bf16", 2.0**-8), ("fp16", 2.0**-11)])
@pytest.mark.parametrize("scale", [1e-30, 1e-7, 1.0, 1e6, 1e30])
def test_values_of_any_size_keep_their_digits(name: str, error: float, scale: float) -> None:
    """Gradients of a mean loss lie far below what fp16 can hold."""
    wire = WIRES[name]  # type: ignore[index]
    assert wire is not None
    values = torch.from_numpy(np.random.default_rng(1).uniform(0.1, 1.0, 1000).astype(np.float32)) * scale
    values[700:] *= -1000
    counts = [300, 0, 400, 300]
    packed, more = pack(values, counts, wire)
    assert packed.nbytes == 2 * (1000 + 4 * more)
    back = unpack(packed, counts, wire)
    assert float(((back - values) / values).abs().max()) <= error


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_zeros_and_what_is_not_finite_stay(name: str) -> None:
    wire = WIRES[name]  # type: ignore[index]
    assert wire is not None
    values = torch.tensor([0.0, 0.0, float("inf"), float("nan")])
    back = unpack(pack(values, [2, 2], wire)[0], [2, 2], wire)
    assert torch.equal(back[:3], values[:3])
    assert bool(back[3].isnan())


def test_a_wire_that_is_not_known_is_refused_with_its_field(config_of: object) -> None:
    content = config_of().model_dump(mode="json", exclude_unset=True)  # type: ignore[operator]
    content["training"] |= {"wire": "bf61"}
    with pytest.raises(Exception, match=r"training\.wire.*'fp32', 'bf16' or 'fp16'"):
        parse_content(content)
    assert TrainConfig.model_validate(content | {"training": {"wire": "bf16"}}).training.wire == "bf16"
