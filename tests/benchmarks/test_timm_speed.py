"""The comparison with timm's training script reads what that script prints, and gives it the same work."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

LINE = "Train: 0 [{:>4d}/25 (  4%)]  Loss: 4.61 (4.61)  Time: {:.3f}s, 1280.00/s  (0.100s, 1280.00/s)  LR: 1.000e-02"
# What stands in for timm's script: notes its words, and takes one second for the first updates, then a tenth of one.
STAND_IN = """
import json, os, pathlib, sys
# knows --device
words = sys.argv[1:]
images = len(list(pathlib.Path(words[0], "train").rglob("*.png")))
note = {"words": words, "images": images, "threads": os.environ["OMP_NUM_THREADS"]}
pathlib.Path(__file__).with_name("note.json").write_text(json.dumps(note))
for number in range(images // 4):
    print(LINE.format(number, 1.0 if number < 6 else 0.1), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def timm_speed(script):
    return script("timm_speed")


def stand_in(folder: Path, text: str) -> Path:
    script = folder / "train.py"
    script.write_text(f"LINE = {LINE!r}\n{text}")
    return script


def test_the_first_updates_do_not_count(timm_speed):
    text = "\n".join(
        ["Model resnet18 created", *(LINE.format(n, 9.0 if n < 6 else 0.25) for n in range(10)), "Test: 0"]
    )
    assert timm_speed.speed_from(text, 128) == 128 / 0.25
    with pytest.raises(SystemExit, match="printed no update after the first 6"):
        timm_speed.speed_from(LINE.format(5, 0.1), 128)


def test_both_are_measured_on_the_same_work(timm_speed, tmp_path, capsys):
    script = stand_in(tmp_path, STAND_IN)
    words = ["--timm-train", str(script), "--batch", "4", "--steps", "2", "--rounds", "1", "--threads", "1"]
    timm_speed.main([*words, "--model", "resnet10t", "--precision", "float32"])
    shown = capsys.readouterr().out
    note = json.loads((tmp_path / "note.json").read_text())
    assert "resnet10t at 32 px, batch 4, 1 threads, float32, timm " in shown
    assert "timm     median      40 images/s" in shown
    assert "relatum / timm " in shown and "bar: at least 1.2" in shown
    assert (note["images"], note["threads"]) == (4 * (6 + 2), "1")
    line = " ".join(note["words"])
    for part in ("--model resnet10t", "--batch-size 4", "--input-size 3 32 32", "--opt momentum", "--device cpu"):
        assert part in line
    assert "--amp" not in line and "--model-kwargs" not in line


def test_a_vit_and_bfloat16_are_asked_for(timm_speed, tmp_path):
    script = stand_in(tmp_path, "")
    args = timm_speed.parse(["--timm-train", str(script), "--model", "vit_tiny_patch16_224"])
    line = " ".join(timm_speed.timm_words(script, tmp_path, tmp_path / "out", args, "bfloat16"))
    assert "--model-kwargs img_size=32" in line and "--amp --amp-dtype bfloat16" in line and "--device" not in line


def test_a_script_that_fails_or_is_not_there_is_told(timm_speed, tmp_path, capsys):
    script = stand_in(tmp_path, "raise SystemExit('no such model')")
    args = timm_speed.parse(["--timm-train", str(script)])
    with pytest.raises(SystemExit, match="ended with code 1; its last words:\nno such model"):
        timm_speed.timm_speed([sys.executable, str(script)], args)
    with pytest.raises(SystemExit):
        timm_speed.parse(["--timm-train", str(tmp_path / "none.py")])
    assert "and name its train.py" in capsys.readouterr().err
