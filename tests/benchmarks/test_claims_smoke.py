"""The smallest variant of a claim: its verdict fails when the effect has gone, and says what was expected."""

from __future__ import annotations

import json

import pytest
from claims_kit import ARMS
from claims_tools import smoke
from claims_tools.running import Options
from claims_tools.settings import arm_config, row_settings
from claims_tools.smoke_spec import Smoke

from relatum.errors import ConfigError

PART = """
[smoke]
effect = ["bs", "ce"]
column = "Few"
above = 2.0
[smoke.settings]
"train.epochs" = 3
"""


def asked(above=None, within=None):
    return Smoke(("bs", "ce"), "Few", {}, (0,), above, within)


@pytest.mark.parametrize(
    ("recorded", "got", "kept"),
    [
        ([10.0, 11.0, 12.0], 11.0, True),
        ([10.0, 11.0, 12.0], 7.1, True),  # four standard deviations of 1.0 below 11
        ([10.0, 11.0, 12.0], 6.9, False),
        ([10.0, 11.0, 12.0], 30.0, True),  # more is not less
        ([11.0, 11.0, 11.1], 10.1, True),  # a point is always allowed
        ([11.0, 11.0, 11.1], 9.9, False),
        ([3.0, 6.0, 9.0], 2.1, True),
        ([3.0, 6.0, 9.0], 1.9, False),  # within the spread, but there is no effect any more
    ],
)
def test_an_effect_must_stay(recorded, got, kept):
    assert smoke.judge("x", asked(above=2.0), recorded, got).kept is kept


@pytest.mark.parametrize(("got", "kept"), [(0.3, True), (1.4, True), (-1.6, False), (1.6, False)])
def test_an_effect_that_is_not_there_must_not_appear(got, kept):
    assert smoke.judge("x", asked(within=1.5), [0.2, -0.1], got).kept is kept


def test_the_verdict_names_claim_expectation_result_and_tolerance():
    words = smoke.judge("livt", asked(above=2.0), [10.0, 11.0, 12.0], 1.5).words
    assert words == (
        "livt: bs - ce in Few: expected +11.00 (standard deviation 1.00 of 3 seeds), got +1.50, must stay above +7.00 "
        "(tolerance 4.00): THE EFFECT IS NOT WHAT IT WAS"
    )


@pytest.fixture
def trained(monkeypatch):
    """Stand in for training: rows with chosen numbers, as a real run would append them."""

    def arrange(numbers, code=0):
        def run(claim, options):
            options.work.mkdir(parents=True, exist_ok=True)
            for arm in claim.arms:
                for seed in arm.seeds:
                    row = {
                        "arm": arm.name,
                        "seed": seed,
                        "settings": row_settings(claim, arm, arm_config(claim, arm)),
                        "Few": numbers[arm.name],
                    }
                    with claim.results.open("a") as file:
                        file.write(json.dumps(row) + "\n")
            return code

        monkeypatch.setattr(smoke, "run_claim", run)

    return arrange


def record(claim, effects):
    small, _ = smoke.small_claim(claim, claim.folder / "smoke.jsonl", range(len(effects)))
    lines = []
    for arm in small.arms:
        for seed, effect in enumerate(effects):
            value = 0.2 + (effect / 100 if arm.name == "bs" else 0.0)
            lines.append(
                {
                    "arm": arm.name,
                    "seed": seed,
                    "settings": row_settings(small, arm, arm_config(small, arm)),
                    "Few": value,
                }
            )
    small.results.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_smallest_variant_has_two_arms_and_its_own_settings(make_claim, tmp_path):
    claim = make_claim(PART.join((ARMS, "")))
    small, _ = smoke.small_claim(claim, tmp_path / "x.jsonl", [4, 5])
    assert [arm.name for arm in small.arms] == ["bs", "ce"] and small.arms[0].seeds == (4, 5)
    assert (
        arm_config(small, small.arm("bs")).train.epochs == 3 and arm_config(claim, claim.arm("bs")).train.epochs == 20
    )
    with pytest.raises(ConfigError, match=r"some-claim has no \[smoke\]"):
        smoke.small_claim(make_claim(), tmp_path / "x.jsonl")


def test_a_variant_on_generated_shapes_needs_no_data(make_claim, tmp_path):
    real = '[data]\nwords = "photos"\nroot = "photos"\n' + ARMS
    small, _ = smoke.small_claim(make_claim(real + PART), tmp_path / "x.jsonl")
    assert small.data["root"] == "photos"
    small, _ = smoke.small_claim(make_claim(real + PART + '"data.kind" = "shapes"\n'), tmp_path / "x.jsonl")
    assert "root" not in small.data


def test_a_check_trains_anew_and_compares(make_claim, trained, tmp_path):
    claim = make_claim(ARMS + PART)
    record(claim, [10.0, 11.0, 12.0])
    trained({"bs": 0.31, "ce": 0.2})
    assert smoke.check(claim, Options(tmp_path / "a")).kept
    trained({"bs": 0.21, "ce": 0.2})
    verdict = smoke.check(claim, Options(tmp_path / "b"))
    assert not verdict.kept and "expected +11.00" in verdict.words and "got +1.00" in verdict.words


def test_a_failed_training_is_no_success(make_claim, trained, tmp_path):
    claim = make_claim(ARMS + PART)
    record(claim, [10.0, 11.0])
    trained({"bs": 0.31, "ce": 0.2}, code=1)
    verdict = smoke.check(claim, Options(tmp_path / "a"))
    assert not verdict.kept and "could not be trained" in verdict.words


def test_nothing_is_judged_without_a_record_that_fits(make_claim, trained, tmp_path):
    claim = make_claim(ARMS + PART)
    trained({"bs": 0.31, "ce": 0.2})
    with pytest.raises(ConfigError, match=r"smoke.py some-claim --calibrate 0-2"):
        smoke.check(claim, Options(tmp_path / "a"))
    record(claim, [10.0, 11.0])
    changed = make_claim(ARMS + PART.replace("= 3", "= 4"))
    with pytest.raises(ConfigError, match=r"train.epochs was 3, now 4.*delete smoke.jsonl and record it anew"):
        smoke.check(changed, Options(tmp_path / "b"))


def test_recording_goes_to_the_folder_of_the_claim(make_claim, trained, tmp_path):
    claim = make_claim(ARMS + PART)
    trained({"bs": 0.31, "ce": 0.2})
    assert smoke.calibrate(claim, Options(tmp_path / "a"), [0, 1]) == 0
    assert len((claim.folder / "smoke.jsonl").read_text().splitlines()) == 4
    assert smoke.check(claim, Options(tmp_path / "b")).kept
