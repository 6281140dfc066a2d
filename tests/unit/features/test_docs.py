"""The examples of docs/features.md run, and print what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from storage.features import FeatureSpec

PAGE = Path(__file__).parents[3] / "docs" / "features.md"


def test_the_examples_run_and_print_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    for expected in (
        "[42 42 42]",
        "[0 2 3 3]",
        "[8 9] [ 2. 30.]",
        "genres: 3 values in 1,000 buckets, 3 ids, 0.00% collide (0.10% expected)",
    ):
        assert expected in printed
        assert expected in PAGE.read_text(encoding="utf-8")


def test_the_examples_of_a_configuration_are_valid() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        spec = FeatureSpec.parse(yaml.safe_load(block))
        assert {"age", "age_is_null"} == {feature.name for feature in spec.features if feature.output == "dense"}
