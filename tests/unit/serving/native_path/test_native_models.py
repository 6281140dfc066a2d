from __future__ import annotations

import json
from typing import Any

import pytest

from serving.native_path import models


def test_floats_are_written_natively_only_in_the_form_of_orjson(monkeypatch: pytest.MonkeyPatch) -> None:
    assert models.writes_floats_alike.__wrapped__()

    def other(value: Any) -> bytes:
        return json.dumps(value.tolist(), separators=(",", ":")).encode()  # 1e-05, not 0.00001

    monkeypatch.setattr(models, "dump_json", other)
    assert not models.writes_floats_alike.__wrapped__()
