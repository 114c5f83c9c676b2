"""Words to points: every value typed and checked, every slip one sentence."""

from __future__ import annotations

import pytest

from relatum.arguments import override
from relatum.config import RunConfig
from relatum.config_files import to_dict
from relatum.errors import ConfigError
from relatum.sweep.grid import Point, is_numeric, parse_points, parse_seeds, short_key

BASE = RunConfig()

SLIPS = {
    "objective.tu=1,2": "unknown key 'objective.tu'; did you mean 'objective.tau'?",
    "tau=1,2": "unknown key 'tau'; did you mean objective.tau?",
    "weight-decay=0": "relation.weight_decay or train.weight_decay",
    "objective.tau": "has no values; write --over KEY=V1,V2",
    "objective.tau=": "--over objective.tau= has no values",
    "objective.tau=0,,1": "has an empty value",
    "objective.tau=0,one": "--over objective.tau: 'one' must be a number",
    "train.epochs=1,2.5": "'2.5' must be a whole number",
    "train.epochs=0,1": "'train.epochs' is 0; it must be at least 1",
    "objective.tau=nan": "'objective.tau' must be a finite number",
    "objective.name=ldam,focall": "did you mean 'focal'?",
    "relation.share=yes": "'yes' must be true or false",
    "objective.tau=1,2,1.0": "the grid holds the point tau-1 twice",
    "train.seed=0,1": "given with --seeds",
    "out=a,b": "every run gets its own directory",
    "stages=finetune": "a grid cannot vary it",
}


@pytest.mark.parametrize("text", SLIPS)
def test_a_slip_is_one_sentence(text):
    with pytest.raises(ConfigError) as error:
        parse_points([text], BASE)
    assert SLIPS[text] in str(error.value) and "\n" not in str(error.value)


def test_a_key_twice_or_swept_and_set():
    with pytest.raises(ConfigError, match=r"--over objective\.tau is there twice"):
        parse_points(["objective.tau=1", "objective.tau=2"], BASE)
    parse_points(["train.weight-decay=0,1"], BASE, ["objective.tau"])
    with pytest.raises(ConfigError, match=r"train\.weight_decay is both swept \(--over\) and set"):
        parse_points(["train.weight-decay=0,1"], BASE, ["train.weight_decay"])


def test_the_grid_is_the_product_and_the_last_key_varies_fastest():
    points = parse_points(["objective.name=bce,balanced-bce", "objective.tau=0,0.5,1"], BASE)
    assert [tuple(point.values.values()) for point in points] == [
        ("bce", 0.0), ("bce", 0.5), ("bce", 1.0), ("balanced-bce", 0.0), ("balanced-bce", 0.5), ("balanced-bce", 1.0),
    ]  # fmt: skip
    assert points[1].name == "objective-bce_tau-0.5"
    assert points[1].config(BASE, train__seed=7).objective.tau == 0.5
    assert points[1].config(BASE, train__seed=7).train.seed == 7
    assert BASE.objective.tau == 1.0 and parse_points([], BASE) == [Point({})]
    assert Point({}).name == "recipe"


@pytest.mark.parametrize(
    "text",
    [
        "objective.tau=-0.5,1e-05", "train.epochs=3", "relation.share=true,false", "objective.name=ldam",
        "relation.at=blocks.3 blocks.7,blocks.7", "train.steps=0.5 0.7", "data.root=my photos,a=b,-odd",
        "train.decay-all=false", "data.long_tail=none",
    ],
)  # fmt: skip
def test_the_words_of_a_point_mean_the_same_on_the_command_line_of_train(text):
    for point in parse_points([text], BASE):
        (key,) = point.values
        there = override(BASE, "relatum train", point.words(), "")
        assert to_dict(there) == to_dict(point.config(BASE))
        room, last = key.split(".")
        assert list(point.values.values()) == [to_dict(there)[room][last]]


def test_names_are_short_safe_and_distinct():
    assert [short_key(k) for k in ("objective.tau", "objective.name", "train.weight_decay", "pretrain.subset")] == [
        "tau", "objective", "train.weight-decay", "subset",
    ]  # fmt: skip
    values = ["a/b", "a-b", "../x", "b" * 300, "b" * 301, "$x y", "é"]
    names = [Point({"data.root": value}).name for value in values]
    assert len(set(names)) == len(names)
    assert all(len(name) < 100 and name.isascii() and "/" not in name and " " not in name for name in names)
    assert names[1] == "data.root-a-b" and Point({"relation.at": ["x", "y"]}).name == "at-x+y"


def test_seeds():
    assert parse_seeds("0-2") == [0, 1, 2] and parse_seeds("5") == [5]
    assert parse_seeds("0,3,5") == [0, 3, 5] and parse_seeds("4, 0-1") == [4, 0, 1]
    for text in ("", "a", "0-", "-1", "1.5", "0,,1", "2-0", "0-5000", "0-2,1", "4294967296"):
        with pytest.raises(ConfigError, match="--seeds"):
            parse_seeds(text)


def test_numeric_keys():
    assert is_numeric("objective.tau") and is_numeric("train.epochs")
    assert not is_numeric("relation.share") and not is_numeric("objective.name") and not is_numeric("train.steps")
