"""Text of a claim.toml for tests."""

from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HEAD = """
title = "Balanced losses help"
verdict = "they do"
setting = "generated shapes"
recipe = "shapes-lt"
seeds = "0-2"
"""
ARMS = """
[published]
source = "a paper"
values = { bs = 50.7 }

[[arm]]
name = "ce"
label = "cross-entropy"
settings = { "objective.name" = "cross-entropy", "relation.name" = "none" }

[[arm]]
name = "bs"
label = "Balanced Softmax"
settings = { "relation.name" = "none" }
"""
