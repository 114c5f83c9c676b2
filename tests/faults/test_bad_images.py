"""Bad images stop by name, or are set aside, counted, bounded and listed; never is another image in their place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bad_files import BAD, plant_bad, plant_folder, plant_odd
from PIL import ImageFile

from relatum.cli import main
from relatum.config import DataConfig
from relatum.data import build_loaders, read_folder
from relatum.data.decode import decode_image
from relatum.data.inspect import inspect_data
from relatum.errors import DataError

TRAIN = (
    "train", "shapes-lt", "--data.kind", "auto", "--data.long-tail", "none", "--data.image-size", "16",
    "--data.batch-size", "8", "--train.warmup-epochs", "0", "--train.epochs", "2", "--train.save-every", "1",
    "--train.threads", "1", "--evaluate.bootstrap", "0",
)  # fmt: skip
QUARANTINE = ("--data.bad-images", "quarantine", "--data.bad-limit", "0.7")


def called(capsys, *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """24 sound images of two classes, and one bad one of each kind among the cats."""
    root = plant_folder(tmp_path / "photos", {"cat": 16, "dog": 8})
    plant_bad(root / "cat")
    return root


def test_every_kind_of_bad_file_is_named_with_its_reason(bad: Path) -> None:
    source = read_folder(bad)["train"]
    found = {}
    for i in range(len(source)):
        try:
            source.load(i)
        except DataError as error:
            found[Path(source.describe(i)).name] = str(error)
    assert sorted(found) == sorted(BAD)
    for name, words in BAD.items():
        assert words in found[name] and name in found[name], found[name]
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


def test_a_claimed_size_takes_no_memory(tmp_path: Path) -> None:
    plant_bad(tmp_path)
    program = """
import resource, sys
from relatum.data.decode import decode_image
from relatum.errors import DataError
decode_image(sys.argv[1])  # what the decoders need for themselves is loaded now
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[2:]:
    try:
        decode_image(path)
    except DataError as error:
        assert "decompression bomb" in str(error), error
    else:
        raise SystemExit(f"{path} was read")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    sound = plant_folder(tmp_path / "sound", {"a": 1}) / "a" / "00.png"
    bombs = sorted(map(str, tmp_path.glob("bomb*")))
    assert len(bombs) == 5
    words = [sys.executable, "-W", "ignore", "-c", program, str(sound), *bombs]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64  # MB; the smallest of them claims 300


def test_odd_files_are_read_and_inspection_says_what_is_odd(tmp_path: Path) -> None:
    root = plant_folder(tmp_path, {"dog": 8})
    plant_odd(root / "cat")
    source = read_folder(root)["train"]
    assert source.num_classes == 2
    assert all(source.load(i).dtype == np.uint8 for i in range(len(source)))
    assert source.prior().counts.tolist() == [10, 8]
    findings = {f.kind: [Path(e.split(": ")[0]).name for e in f.examples] for f in inspect_data(root).findings}
    assert findings.pop("wrong-suffix") == ["png-called.jpg"]
    assert findings.pop("animated") == ["moving.gif"]
    assert findings.pop("rotated") == ["turned.jpg"]
    assert sorted(findings.pop("converted")) == ["cmyk.jpg", "deep.png", "palette.png"]
    assert findings.pop("tiny") == ["dot.png"]
    assert not findings


def test_inspection_finds_every_bad_file_and_hands_no_control_code_to_the_terminal(
    bad: Path, capsys, monkeypatch
) -> None:
    plant_odd(bad / "dog")
    (bad / "dog" / "evil\x1b]0;title\x07.jpg").write_text("no image")
    monkeypatch.setenv("COLUMNS", "300")
    code, out, err = called(capsys, "inspect", bad, "--plot", bad.parent / "plot.png")
    assert code == 0
    assert f"{len(BAD) + 1} images cannot be read" in out
    assert "\x1b" not in out + err and "\x07" not in out + err
    code, out, _ = called(capsys, "inspect", bad, "--json")
    unreadable = json.loads(out)["splits"]["train"]["unreadable"]
    reasons = {Path(entry["file"]).name: entry["note"] for entry in unreadable}
    assert set(reasons) == {*BAD, "evil\x1b]0;title\x07.jpg"}
    assert all(BAD[name] in reasons[name] for name in BAD)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user for a moment")
def test_files_without_permission_are_named(tmp_path: Path, monkeypatch) -> None:
    plant_folder(tmp_path / "photos", {"cat": 3, "dog": 2})
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # the folders above it belong to the test's user alone
    (tmp_path / "photos/cat/00.png").chmod(0)
    os.seteuid(65534)
    try:
        with pytest.raises(DataError, match=r"00\.png: Permission denied"):
            decode_image("photos/cat/00.png")
        assert [n.note for n in inspect_data("photos").train.unreadable] == ["Permission denied"]
    finally:
        os.seteuid(0)
    (tmp_path / "photos/dog").chmod(0)
    os.seteuid(65534)
    try:  # a folder that cannot be listed is not an empty one
        with pytest.raises(DataError, match="cannot read folder photos/dog: Permission denied"):
            read_folder("photos")
        assert "bad-folder" in [f.kind for f in inspect_data("photos").findings]
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("memory", ["always", "never"])
def test_training_stops_at_the_first_bad_image_with_its_name(tmp_path, capsys, memory: str) -> None:
    root = plant_folder(tmp_path / "photos", {"cat": 9, "dog": 9})
    (root / "dog" / "broken.png").write_bytes((root / "dog" / "00.png").read_bytes()[:200])
    words = ("--data.root", root, "--out", tmp_path / "run", "--data.memory", memory, "--data.workers", 2)
    code, _, err = called(capsys, *TRAIN, *words)
    assert code == 2
    assert f"cannot read image {root / 'dog' / 'broken.png'}: " in err
    assert len([line for line in err.splitlines() if line.startswith("relatum: error")]) == 1


def test_training_sets_aside_counts_lists_and_reports(bad: Path, tmp_path: Path, capsys) -> None:
    (bad / "cat" / "<b>bold.jpg").write_text("no image")
    run = tmp_path / "run"
    words = (*TRAIN, *QUARANTINE, "--data.root", bad, "--out", run)
    code, _, err = called(capsys, *words, "--train.max-steps", 2)
    assert code == 0, err
    assert "17 images cannot be read and are set aside: train" in err
    manifest = json.loads((run / "manifest.json").read_text())
    kept = manifest["quarantine"]
    assert (kept["images"], kept["per_class"]) == (17, {"cat": 17})
    listed = [entry for entries in kept["splits"].values() for entry in entries]
    assert {Path(entry["path"]).name for entry in listed} == {*BAD, "<b>bold.jpg"}
    assert all(entry["class_name"] == "cat" and entry["reason"] for entry in listed)
    # the counts are those after it: 33 cats of which 17 are bad, 8 dogs; 7 and 2 of them held out
    in_train = len(kept["splits"]["train"])
    assert manifest["class_counts"] == [33 - 7 - in_train, 6]
    code, _, err = called(capsys, "report", run)
    assert code == 0, err
    page = (run / "report.html").read_text()
    assert "Images set aside" in page and "&lt;b&gt;bold.jpg" in page and "<b>bold" not in page
    assert f"<td>{in_train}</td>" in page and "a named pipe, not a file" in page


def test_a_run_that_goes_on_must_set_the_same_images_aside(bad: Path, tmp_path: Path, capsys) -> None:
    words = (*TRAIN, *QUARANTINE, "--data.root", bad, "--out", tmp_path / "run")
    assert called(capsys, *words, "--train.max-steps", 3)[0] == 0
    sound = (bad / "dog" / "00.png").read_bytes()
    before = {entry["path"] for entry in _set_aside(tmp_path / "run", "train")}
    repaired = next(path for path in sorted(before) if path.endswith((".jpg", ".png")) and Path(path).is_file())
    Path(repaired).write_bytes(sound)
    code, _, err = called(capsys, *words)
    assert code == 2
    assert "other images are set aside than when" in err and f"no longer {repaired} (train)" in err
    code, _, err = called(capsys, *words, "--allow-changes")
    assert code == 0 and "Allowed change: other images are set aside" in err
    assert {entry["path"] for entry in _set_aside(tmp_path / "run", "train")} == before - {repaired}


def _set_aside(run: Path, split: str) -> list[dict[str, str]]:
    return json.loads((run / "manifest.json").read_text())["quarantine"]["splits"][split]


def test_too_many_bad_images_stop_with_counts_and_names(bad: Path, tmp_path: Path, capsys) -> None:
    words = (*TRAIN, "--data.root", bad, "--out", tmp_path / "run", "--data.bad-images", "quarantine")
    code, _, err = called(capsys, *words)
    assert code == 2
    assert "cannot be read (" in err and "more than data.bad_limit (5.0%)" in err and "cat 1" in err
    assert any(name in err for name in BAD)


def test_one_class_is_nothing_to_tell_apart(tmp_path: Path, capsys) -> None:
    root = plant_folder(tmp_path / "photos", {"cat": 9})
    code, _, err = called(capsys, *TRAIN, "--data.root", root, "--out", tmp_path / "run")
    assert code == 2 and "one class with images ('cat'): there is nothing to tell apart" in err
    assert "one-class" in [f.kind for f in inspect_data(root).findings]


def test_links_in_circles_and_links_to_nowhere(tmp_path: Path) -> None:
    root = plant_folder(tmp_path / "photos", {"cat": 3, "dog": 3})
    (root / "cat" / "again").symlink_to(root / "cat")
    with pytest.raises(DataError, match="again is a link to a folder that it lies in"):
        read_folder(root)
    (root / "emu").symlink_to(tmp_path / "gone")
    (root / "fox").symlink_to("fox")
    findings = {f.kind: f.examples for f in inspect_data(root).findings}
    assert len(findings["bad-folder"]) == 3
    assert inspect_data(root).train.counts == {"cat": 3, "dog": 3}  # each image once
    (root / "cat" / "again").unlink()
    for name in ("emu", "fox"):
        with pytest.raises(DataError, match=r"photos/(emu|fox) is broken"):
            read_folder(root)
        (root / name).unlink()
    assert len(read_folder(root)["train"]) == 6
    elsewhere = plant_folder(tmp_path / "elsewhere", {"album": 2})
    (root / "dog" / "album").symlink_to(elsewhere / "album")  # a link that leads somewhere is followed
    assert read_folder(root)["train"].prior().counts.tolist() == [3, 5]


def test_twins_of_a_name_and_control_codes_in_a_name(tmp_path: Path) -> None:
    root = plant_folder(tmp_path / "photos", {"caf\u00e9": 2, "cafe\u0301": 2, "a\x1b[2Jb": 2})
    found = inspect_data(root)
    (alike,) = [f for f in found.findings if f.kind == "look-alike"]
    assert alike.count == 1 and "caf\\xe9" in alike.examples[0] and "cafe\\u0301" in alike.examples[0]
    assert "a\\x1b[2Jb" in found.train.counts
    loaders = build_loaders(DataConfig(root=str(root), image_size=16, batch_size=2))
    assert not any("\x1b" in name for name in loaders.prior.names)
    split = plant_folder(tmp_path / "split", {"train/caf\u00e9": 2, "train/dog": 2, "val/cafe\u0301": 1})
    with pytest.raises(DataError, match="another Unicode form"):
        read_folder(split)
