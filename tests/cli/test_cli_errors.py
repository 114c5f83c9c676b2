"""Data that is missing, empty, mislabelled or broken; places that cannot be written; directories that are no run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

HALF_AN_IMAGE = "cannot read image {}: "


def _break(image: Path) -> Path:
    image.write_bytes(image.read_bytes()[:100])
    return image


# -- data ------------------------------------------------------------------------------------------------------


def test_missing_folder_and_folders_without_images(refused, training, tmp_path):
    assert "data folder not found: nowhere" in refused(*training("nowhere"))
    assert "data folder not found: nowhere" in refused("inspect", "nowhere")
    (tmp_path / "empty").mkdir()
    assert "no class folders in empty" in refused(*training("empty"))
    assert "no class folders in empty" in refused("inspect", "empty")


def test_an_empty_class_is_refused_in_training_and_found_by_inspection(refused, relatum, training, own_photos):
    (own_photos / "dog").mkdir()
    assert f"class folder {own_photos / 'dog'} holds no images" in refused(*training(own_photos))
    code, out, _ = relatum("inspect", own_photos)
    assert code == 0 and "dog (train)" in out


@pytest.mark.parametrize("memory", ["always", "never"])
def test_a_broken_image_stops_training_by_name(refused, training, own_photos, memory):
    broken = _break(own_photos / "bee" / "3.png")
    words = training(own_photos, "run", "--data.memory", memory, "--data.workers", 1, "--train.max-steps", 0)
    assert HALF_AN_IMAGE.format(broken) in refused(*words)


def test_a_failed_start_does_not_bind_the_next_one(refused, relatum, training, photos):
    refused(*training("nowhere"))
    assert "the loss is not finite" in refused(*training(photos, "run", "--train.lr", 1e30))
    assert relatum(*training(photos, "run", "--data.batch-size", 12))[0] == 0
    assert "holds a run with other settings" in refused(*training(photos, "run"))


@pytest.mark.parametrize("label", ["5", "-1"])
def test_a_label_out_of_range_is_named_with_its_line(refused, training, photos, tmp_path, label):
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    (tmp_path / "table.csv").write_text(f"path,label\n{photos}/ant/0.png,0\n{photos}/bee/0.png,{label}\n")
    words = refused(*training("table.csv", "run", "--data.class-names", "names.txt"))
    assert words.startswith("table.csv, line 3: ") and label in words
    (tmp_path / "list.txt").write_text(f"ant/0.png 0\nbee/0.png {label}\n")
    lists = ("--data.kind", "list", "--data.train-list", "list.txt", "--data.class-names", "names.txt")
    words = refused(*training(photos, "run", *lists))
    assert words.startswith("list.txt, entry 2: ") and label in words


def test_tables_lists_and_names_that_cannot_be_used(refused, training, photos, tmp_path):
    (tmp_path / "table.csv").write_text(f"path\n{photos}/ant/0.png\n")
    assert "no column 'label'" in refused(*training("table.csv"))
    assert "no column 'label'" in refused("inspect", "table.csv")
    (tmp_path / "table.csv").write_text(f"path,label\n{photos}/ant/0.png,ant\n{photos}/ant/99.png,bee\n")
    assert "--data.allow-outside" in refused(*training("table.csv"))
    assert "image not found" in refused(*training("table.csv", "run", "--data.allow-outside"))
    assert "no training list given" in refused(*training(photos, "run", "--data.kind", "list"))
    names = ("--data.class-names", "names.txt")
    assert "cannot read class names names.txt" in refused(*training(photos, "run", *names))
    (tmp_path / "names.txt").write_text("ant\n\nbee\n")
    assert "names.txt, line 2 is empty" in refused(*training(photos, "run", *names))
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    assert "cat" in refused(*training(photos, "run", *names))


def test_an_incomplete_cifar_folder(refused, training, tmp_path):
    folder = tmp_path / "cifar" / "cifar-100-python"
    folder.mkdir(parents=True)
    assert "expected cifar-100-python/train" in refused(*training("cifar", "run", "--data.kind", "cifar100"))
    (folder / "train").write_bytes(b"junk")
    assert "cannot read cifar/cifar-100-python/train" in refused(*training("cifar", "run", "--data.kind", "cifar100"))


# -- places to write -------------------------------------------------------------------------------------------


@pytest.fixture(params=["below a file", "in /proc"])
def blocked(request, tmp_path) -> Path:
    """A path that nobody can create."""
    if request.param == "in /proc":
        if not Path("/proc/self").exists():
            pytest.skip("there is no /proc here")
        return Path("/proc/x/y")
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "x"


def test_every_verb_says_that_it_cannot_write(refused, training, finished, photos, blocked):
    image = photos / "ant" / "0.png"
    assert f"cannot write to {blocked}" in refused(*training(photos, blocked))
    assert f"cannot write {blocked}" in refused("predict", finished, image, "--out", blocked)
    assert f"cannot write {blocked}" in refused("report", finished, "--out", blocked)
    assert str(blocked) in refused("export", finished, blocked)
    assert f"cannot write the plot {blocked}" in refused("inspect", photos, "--plot", blocked)
    assert f"cannot write {blocked}" in refused("recipes", "copy", "shapes-lt", blocked)
    assert f"cannot write to {blocked}" in refused("demo", "--out", blocked)


def test_a_recipe_is_not_copied_over_a_file(refused, tmp_path):
    (tmp_path / "mine.toml").write_text("precious")
    assert "exists already" in refused("recipes", "copy", "shapes-lt", "mine.toml")
    assert (tmp_path / "mine.toml").read_text() == "precious"


# -- runs ------------------------------------------------------------------------------------------------------


def test_a_run_directory_with_other_settings_is_left_alone(refused, training, photos, finished):
    words = refused(*training(photos, finished, "--train.lr", 0.01))
    assert "holds a run with other settings (train.lr was 0.1, now 0.01)" in words


def test_what_is_no_run(refused, photos, tmp_path):
    image = photos / "ant" / "0.png"
    for place, words in ((photos, "is not a run directory"), ("nowhere", "there is no run at nowhere")):
        assert words in refused("evaluate", place)
        assert words in refused("predict", place, image)
        assert words in refused("export", place, "out")
    assert "not a run directory" in refused("report", photos)
    assert "nowhere does not exist" in refused("report", "nowhere")
    assert "not a readable relatum checkpoint" in refused("predict", image, image)


def test_evaluation_needs_the_directory_and_its_data(refused, finished, own_photos):
    checkpoint = next((finished / "checkpoints").glob("*.safetensors"))
    assert "needs the run directory" in refused("evaluate", checkpoint)
    assert "data folder not found: nowhere" in refused("evaluate", finished, "--data-root", "nowhere")
    shutil.rmtree(own_photos / "cat")
    assert "has other classes" in refused("evaluate", finished, "--data-root", own_photos)


def test_a_run_without_evaluation_split_says_so(relatum, refused, training, photos):
    code, out, _ = relatum(*training(photos, "run", "--data.val-fraction", 0))
    assert code == 0 and "nothing was measured" in out and "┃" not in out
    assert "nothing to score it on" in refused("evaluate", "run")


def test_images_that_cannot_be_predicted_leave_no_half_file(refused, finished, own_photos, tmp_path):
    assert "there is no file or folder nowhere" in refused("predict", finished, "nowhere")
    (tmp_path / "empty").mkdir()
    assert "there are no images in empty" in refused("predict", finished, "empty")
    broken = _break(own_photos / "cat" / "9.png")
    (tmp_path / "rows.csv").write_text("precious")
    words = refused("predict", finished, own_photos, "--format", "csv", "--out", "rows.csv")
    assert HALF_AN_IMAGE.format(broken) in words
    assert (tmp_path / "rows.csv").read_text() == "precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "own photos", "rows.csv"]
