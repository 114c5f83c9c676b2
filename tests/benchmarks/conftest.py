"""Scripts and tools of benchmarks/ are importable, and a claim is made of text and of rows with chosen numbers."""

import importlib
import json
import sys

import pytest
from claims_kit import ARMS, BENCHMARKS, HEAD

sys.path.append(str(BENCHMARKS))


@pytest.fixture(scope="module")
def script():
    """Import a file of benchmarks/: script("scale"). Afterwards it is forgotten, with what it took from beside it."""
    known = set(sys.modules)
    yield importlib.import_module
    beside = {path.stem for path in BENCHMARKS.glob("*.py")}
    for name in (set(sys.modules) - known) & beside:
        del sys.modules[name]


@pytest.fixture
def make_claim(tmp_path):
    """Write a claim.toml and read it: make_claim(text, head=HEAD, name="some-claim")."""
    from claims_tools.claim import read_claim

    def make(text=ARMS, head=HEAD, name="some-claim"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "claim.toml").write_text(head + text)
        return read_claim(folder)

    return make


@pytest.fixture
def make_rows():
    """Rows of a claim: make_rows(claim, {"ce": {0: 0.3, 1: 0.32}}, column="All"); written where the claim has them."""
    from claims_tools.settings import arm_config, row_settings

    def make(claim, numbers, column="All", **more):
        rows = [
            {
                "arm": arm, "seed": seed, "status": "finished",
                "settings": row_settings(claim, claim.arm(arm), arm_config(claim, claim.arm(arm))),
                "selection": "last epoch", "split": "test", "All": None, "Few": None, "epochs": 20, "seconds": 120.0,
                "pretraining": None, "threads": 1, "hardware": {"cpu": "X", "cores": 2, "torch": "9"},
                column: value, **more,
            }
            for arm, values in numbers.items() for seed, value in values.items()
        ]  # fmt: skip
        claim.results.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return rows

    return make
