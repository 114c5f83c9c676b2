"""The fabricated runs of the report's tests, for faults in what a report reads."""

import importlib.util
import sys
from pathlib import Path

_FILE = Path(__file__).parents[1] / "report" / "fabricate.py"
_SPEC = importlib.util.spec_from_file_location("fabricated_runs", _FILE)
assert _SPEC is not None and _SPEC.loader is not None
fabricate = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = fabricate
_SPEC.loader.exec_module(fabricate)
