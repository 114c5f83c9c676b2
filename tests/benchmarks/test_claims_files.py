"""claim.toml: arms and grids as they stand there, and an error with its place for all that is not understood."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from claims_kit import ARMS, HEAD
from claims_tools.claim import find_claim
from claims_tools.settings import arm_config, data_settings, essential

from relatum.errors import ConfigError

GRID = """
[[grid]]
name = "{loss}-{train.epochs}"
label = "{loss} for {train.epochs} epochs"
seeds = "0-4"
[grid.settings]
"train.lr" = 0.05
[grid.over.loss]
ce = { "objective.name" = "cross-entropy", "relation.name" = "none" }
bf = {}
[grid.over]
"train.epochs" = [10, 20, 40]
[grid.labels]
bf = "BatchFormer"
"""


def test_an_arm_has_its_own_settings_above_those_of_all(make_claim):
    claim = make_claim('[settings]\n"train.epochs" = 7\n"train.lr" = 0.3\n' + ARMS.replace("0-2", "0"))
    config = arm_config(claim, claim.arm("ce"))
    assert (config.train.epochs, config.train.lr, config.objective.name) == (7, 0.3, "cross-entropy")
    assert arm_config(claim, claim.arm("bs")).objective.name == "balanced-softmax"  # that of the recipe
    assert claim.arm("ce").seeds == (0, 1, 2) and claim.arm("bs").label == "Balanced Softmax"


def test_a_grid_multiplies_its_lists(make_claim):
    claim = make_claim(GRID)
    assert [arm.name for arm in claim.arms] == ["ce-10", "ce-20", "ce-40", "bf-10", "bf-20", "bf-40"]
    arm = claim.arm("bf-20")
    assert arm.label == "BatchFormer for 20 epochs" and arm.seeds == (0, 1, 2, 3, 4)
    assert arm.parts == {"loss": "bf", "train.epochs": "20"}
    config = arm_config(claim, arm)
    assert (config.train.epochs, config.train.lr, config.relation.name) == (20, 0.05, "batchformer")
    assert arm_config(claim, claim.arm("ce-40")).objective.name == "cross-entropy"


def test_wildcards_choose_arms_in_the_order_asked_for(make_claim):
    claim = make_claim(GRID)
    assert [arm.name for arm in claim.select(["bf-40", "ce-*"])] == ["bf-40", "ce-10", "ce-20", "ce-40"]
    assert len(claim.select([])) == 6
    with pytest.raises(ConfigError, match=r"no arm 'cf-10'; did you mean 'ce-10'"):
        claim.select(["cf-10"])


def test_an_arm_may_have_its_own_recipe_file(make_claim, tmp_path):
    (tmp_path / "some-claim").mkdir()
    (tmp_path / "some-claim" / "own.toml").write_text('[train]\nepochs = 3\n[data]\nkind = "shapes"\n')
    claim = make_claim('[[arm]]\nname = "a"\nrecipe = "own.toml"\n[[arm]]\nname = "b"\n')
    assert arm_config(claim, claim.arm("a")).train.epochs == 3
    assert arm_config(claim, claim.arm("b")).train.epochs == 20


@pytest.mark.parametrize(
    ("text", "head", "words"),
    [
        (ARMS, HEAD + 'titel = "x"\n', r"some-claim/claim.toml: unknown key 'titel'; did you mean 'title'"),
        (ARMS, HEAD.replace("recipe =", "# recipe ="), r"'recipe' is missing"),
        (ARMS, HEAD.replace('"0-2"', "3"), r"'seeds' must be text, not 3"),
        (ARMS, HEAD.replace("0-2", "2-0"), r"seeds 2-0 must rise"),
        ("", HEAD, r"there is no arm"),
        (ARMS.replace('"bs"', '"ce"'), HEAD, r"two arms are called 'ce'"),
        (ARMS.replace('"bs"', '"b/s"'), HEAD, r"arm 'b/s': this cannot be its name"),
        (ARMS.replace("objective.name", "objectiv.name"), HEAD, r'unknown setting "objectiv.name"'),
        (ARMS.replace("objective.name", "train.seed"), HEAD, r"'train.seed' cannot be set"),
        (ARMS.replace("bs = 50.7", "bx = 50.7"), HEAD, r"there is no arm 'bx'"),
        (ARMS + '[[table]]\nname = "t"\narms = ["x*y"]\n', HEAD, r"there is no arm 'x\*y'"),
        (ARMS + '[[table]]\nname = "t"\nbases = "ce"\n', HEAD, r"unknown key 'bases'"),
        ('[[grid]]\n[grid.over]\n"train.epochs" = 3\n', HEAD, r"over.train.epochs must be a list of values"),
        ('[[grid]]\n[grid.over]\nloss = ["a"]\n', HEAD, r'unknown setting "loss"'),
        (ARMS + '[smoke]\neffect = ["ce"]\ncolumn = "All"\nabove = 1.0\n', HEAD, r"effect must be two arms"),
        (ARMS + '[smoke]\neffect = ["ce", "bs"]\ncolumn = "All"\n', HEAD, r"give above .* or within"),
        (ARMS + '[smoke]\neffect = ["ce", "bf"]\ncolumn = "All"\nabove = 1\n', HEAD, r"there is no arm 'bf'"),
    ],
)
def test_what_is_not_understood_is_named(make_claim, text, head, words):
    with pytest.raises(ConfigError, match=words):
        make_claim(text, head)


def test_a_value_out_of_range_names_the_arm(make_claim):
    claim = make_claim('[[arm]]\nname = "odd"\nsettings = { "train.epochs" = 0 }\n')
    with pytest.raises(ConfigError, match=r"some-claim, arm 'odd': 'train.epochs' is 0; it must be at least 1"):
        arm_config(claim, claim.arm("odd"))


def test_what_a_result_stands_for_leaves_out_where_and_how_often(make_claim):
    claim = make_claim()
    config = arm_config(claim, claim.arm("bs"))
    same = make_claim('[settings]\n"data.root" = "/x"\n"train.threads" = 2\n"train.eval_every" = 3\n' + ARMS)
    other = make_claim('[settings]\n"train.lr" = 0.2\n' + ARMS)
    assert essential(config) == essential(arm_config(same, same.arm("bs")))
    assert essential(config) != essential(arm_config(other, other.arm("bs")))
    assert "train.seed" not in essential(config) and essential(config)["data.kind"] == "shapes"


def test_data_that_is_missing_is_named(make_claim, tmp_path):
    claim = make_claim('[data]\nwords = "photos"\nroot = "photos"\n' + ARMS)
    with pytest.raises(ConfigError, match=r"some-claim needs data \(photos\): give --data DIR, or set RELATUM_DATA"):
        data_settings(claim, "")
    with pytest.raises(ConfigError, match=r"there is no folder .*photos"):
        data_settings(claim, str(tmp_path))
    (tmp_path / "photos").mkdir()
    assert data_settings(claim, str(tmp_path)) == {"data.root": str(tmp_path / "photos")}
    assert data_settings(make_claim(), "") == {}


def test_a_claim_is_found_by_name_or_folder(make_claim):
    claim = make_claim()
    assert find_claim(str(claim.folder)).name == "some-claim"
    with pytest.raises(ConfigError, match=r"no claim 'livt-in-minature'; did you mean 'livt-in-miniature'"):
        find_claim("livt-in-minature")


def test_the_example_of_the_readme_is_a_claim(make_claim):
    page = Path(__file__).parents[2] / "benchmarks" / "claims" / "README.md"
    example = re.search(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.S)[1]
    claim = make_claim(example, head="")
    assert [arm.name for arm in claim.arms] == [
        "teacher",
        *(f"{loss}-{n}" for loss in ("ce", "bs", "bf") for n in (15, 30, 60)),
    ]
    for arm in claim.arms:
        arm_config(claim, arm)
