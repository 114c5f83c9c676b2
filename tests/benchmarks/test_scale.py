"""The benchmark of large lists measures all it names, and its verdict can fail."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from claims_kit import BENCHMARKS

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")


@pytest.fixture(scope="module")
def scale(script):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(BENCHMARKS), prepend=os.pathsep)  # the benchmark sets it; here it is put back
        yield script("scale")


def entries_of(path):
    return int(Path(path).stem)


def burn(path, power):
    """Compute for a tenth of a second at 1,000 entries, and by `power` longer at more."""
    end = time.process_time() + 0.1 * (entries_of(path) / 1000) ** power
    while time.process_time() < end:
        pass


def hoard(path, power):
    """Hold 20 MB at 1,000 entries, and by `power` more at more."""
    return partial(len, b"x" * int(20e6 * (entries_of(path) / 1000) ** power))


def fail(path):
    return partial(pytest.fail, f"not so at {entries_of(path)}")


def run(scale, monkeypatch, tmp_path, works):
    monkeypatch.setattr(scale.scale_work, "works", lambda: works)
    out = tmp_path / "lines.json"
    code = scale.main(["--sizes", "1000", "4000", "--repeats", "1", "--json", str(out)])
    return code, json.loads(out.read_text())


def test_everything_is_measured_at_every_size(scale, tmp_path, capsys):
    out = tmp_path / "lines.json"
    code = scale.main(["--sizes", "500", "2000", "--repeats", "1", "--json", str(out)])
    lines = json.loads(out.read_text())["lines"]
    names = ["start-up to the first batch", "inspect, not decoding", "resume", "order: deferred (drs)"]
    names += [f"order: {name}" for name in scale.scale_work.SAMPLERS]
    assert {(line["name"], line["entries"]) for line in lines[1:]} == {(n, size) for n in names for size in (500, 2000)}
    assert all(line["cpu"] > 0 and line["total"] >= lines[0]["total"] > 100 for line in lines[1:])
    # Whether the bars are met is for `make scale` to say: so short a measurement beside other work says little.
    assert ("all bars are met" in capsys.readouterr().out) == (code == 0)


def test_what_grows_linearly_passes_and_what_grows_faster_does_not(scale, monkeypatch, tmp_path, capsys):
    linear = {"time": partial(burn, power=1), "memory": partial(hoard, power=1)}
    code, content = run(scale, monkeypatch, tmp_path, linear)
    assert (code, content["met"]) == (0, True), content
    quadratic = {"time": partial(burn, power=2), "memory": partial(hoard, power=2)}
    code, content = run(scale, monkeypatch, tmp_path, quadratic)
    assert (code, content["met"]) == (1, False)
    missed = {(line["name"], line["entries"]): line["missed"] for line in content["lines"] if line["missed"]}
    assert missed.keys() == {("time", 4000), ("memory", 4000)}
    assert missed["time", 4000][0].startswith("time x 1") and missed["memory", 4000][0].startswith("memory x 1")
    assert "a bar is missed" in capsys.readouterr().out


def test_the_largest_list_has_limits_of_its_own(scale):
    def lines(wall, total):
        return [scale.Line("a", 10, 0.0, 99.0, 0.0, 9999.0), scale.Line("a", 100, 0.0, wall, 0.0, total)]

    for wall, total, missed in ((19.0, 1999.0, 0), (21.0, 1999.0, 1), (19.0, 2001.0, 1), (21.0, 2001.0, 2)):
        judged = lines(wall, total)
        scale.judge(judged)
        assert (len(judged[0].missed), len(judged[1].missed)) == (0, missed)


def test_a_measurement_whose_check_fails_is_named(scale, monkeypatch, tmp_path):
    with pytest.raises(RuntimeError, match=r"(?s)wrong at 1000 entries failed.*not so at 1000"):
        run(scale, monkeypatch, tmp_path, {"wrong": fail})


def test_the_lists_are_long_tailed_and_look_like_lists(scale, tmp_path):
    scale.scale_work.write_list(tmp_path / "list.txt", 5_000, classes=100)
    lines = (tmp_path / "list.txt").read_text().splitlines()
    counts = np.bincount([int(line.split()[1]) for line in lines], minlength=100)
    assert len(lines) == len({line.split()[0] for line in lines}) == 5_000
    assert counts.min() >= 1 and counts[0] > 50 * counts[-1] and np.all(np.diff(counts) <= 0)
    assert 50 < np.mean([len(line) for line in lines]) < 75


@pytest.mark.parametrize(("leak", "alive", "missed"), [(0.0, 2, 0), (0.005, 2, 0), (0.01, 2, 2), (0.0, 3, 1)])
def test_the_soak_fails_by_a_steady_leak_or_a_left_over_process_and_not_by_a_single_peak(scale, leak, alive, missed):
    import soak  # beside scale.py

    def size(step):
        return (800 + (300 if step <= 500 else 0) + (90 if step == 2900 else 0)) + leak * step  # MB

    notes = [soak.Note(step, size(step), size(step), alive) for step in range(50, 3001, 50)]
    found, words = soak.judge("workers", notes, settled=500)
    assert len(words) == missed and found["own"].largest >= 890
    assert found["own"].share == pytest.approx(2000 * leak / (800 + 775 * leak), abs=1e-3)
