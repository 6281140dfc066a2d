"""The click log of the unit tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_PATH = Path(__file__).parents[2] / "unit" / "trainer" / "conftest.py"
_SPEC = importlib.util.spec_from_file_location("trainer_click_log", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = _MODULE
_SPEC.loader.exec_module(_MODULE)

clicks = _MODULE.clicks
fresh_clicks = _MODULE.fresh_clicks
config_of = _MODULE.config_of
one_thread = _MODULE.one_thread
