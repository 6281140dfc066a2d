"""Tells people, and programs, what a comparison found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from emberline.proving.batches import Batch, kserve_type
from emberline.proving.prover import Proof

_SHOWN = 5
# A feature stands out if the next one changes the difference by less than this share of it.
_ALIKE = 0.25


def lines(proof: Proof) -> Iterator[str]:
    """Yields the report, one fact a line."""
    yield from _compared(proof)
    old, new = (", ".join(map(repr, names)) for names in proof.unpaired)
    if old:
        yield f"NOT compared: the old server's outputs {old}, which the new model has not; pair them with --output"
    if new:
        yield f"NOT compared: the new model's outputs {new}, which the old server has not; pair them with --output"
    if proof.refused:
        whole = proof.rows + proof.refused
        yield f"NOT compared: {proof.refused} of {whole} rows, which the old server refuses ({proof.refusal[:300]})"
    if proof.unsent:
        yield f"NOT compared: {proof.unsent} golden requests with nulls or empty lists, which a tensor cannot hold"
    if proof.left_out:
        yield f"NOT compared: {proof.left_out:,} more rows of the requests; --rows takes more"


def _compared(proof: Proof) -> Iterator[str]:
    first = proof.first
    if first.count == 0:
        yield f"equal: {proof.rows} rows; the largest difference is {first.largest:.2g}, accepted {first.tolerance:.2g}"
        return
    yield (
        f"{first.count} of {proof.rows} rows differ; the largest difference is {first.largest:.3g}, "
        f"accepted {first.tolerance:.2g}"
    )
    for name, (largest, count) in first.by_output.items():
        yield f"  output {name}: {count} rows, at most {largest:.3g}"
    for each in proof.explained:
        what = "rounding" if each.hypothesis.is_rounding else "explained"
        yield f"{what}: the old server {each.hypothesis.text}; {each.before} rows differed, with that {each.after} do"
    if not proof.unexplained:
        yield "equal but for rounding" if proof.is_equal else "every difference is explained"
        return
    yield f"NOT explained: {proof.unexplained} rows"
    for found in proof.attributions[:_SHOWN]:
        how = "alone makes" if found.is_certain else "changes"
        yield (
            f"  feature {found.feature} {how} a difference: in {found.differ} of {found.asked} requests in which "
            f"nothing else varies, up to {found.spread:.3g}"
        )
    if _follows_none(proof):
        yield "  it follows no single feature: the network, or its weights, may be of another training"
    if proof.example is not None:
        yield f"  the smallest request that shows it: {json.dumps(body(proof.example))}"


def _follows_none(proof: Proof) -> bool:
    """Returns whether no feature alone is at fault: none, or several about alike where no request is equal."""
    spreads = [each.spread for each in proof.attributions if not each.is_certain]
    return not proof.attributions or (len(spreads) > 1 and spreads[1] > _ALIKE * spreads[0])


def body(batch: Batch) -> dict[str, Any]:
    """Returns a request as KServe v2 has it."""
    return {
        "inputs": [
            {
                "name": name,
                "datatype": kserve_type(values),
                "shape": list(values.shape),
                "data": [each.decode() if isinstance(each, bytes) else each for each in values.reshape(-1).tolist()],
            }
            for name, values in batch.items()
        ]
    }


def document(proof: Proof) -> dict[str, Any]:
    """Returns the report for programs."""
    return {
        "rows": proof.rows,
        "equal": proof.is_equal,
        "tolerance": proof.first.tolerance,
        "differing_rows": proof.first.count,
        "largest_difference": proof.first.largest,
        "outputs": {
            name: {"largest_difference": largest, "differing_rows": count}
            for name, (largest, count) in proof.first.by_output.items()
        },
        "explained": [
            {
                "text": f"the old server {each.hypothesis.text}",
                "about": each.hypothesis.about,
                "rounding": each.hypothesis.is_rounding,
                "differing_rows_before": each.before,
                "differing_rows_after": each.after,
            }
            for each in proof.explained
        ],
        "unexplained_rows": proof.unexplained,
        "refused_rows": proof.refused,
        "unsent_rows": proof.unsent,
        "left_out_rows": proof.left_out,
        "not_compared": {"old_outputs": list(proof.unpaired[0]), "new_outputs": list(proof.unpaired[1])},
        "features": [
            {"name": each.feature, "asked": each.asked, "differ": each.differ, "largest_change": each.spread}
            for each in proof.attributions
        ],
        "smallest_request": None if proof.example is None else body(proof.example),
    }
