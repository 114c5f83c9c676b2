"""Every slip of the finger is one sentence that names the nearest valid word."""

from __future__ import annotations

import warnings

import pytest

from relatum import cli
from relatum.arguments import call, override
from relatum.config import RunConfig
from relatum.errors import ConfigError

SLIPS = {
    "trian": "did you mean 'train'?",
    "train": "needs a recipe first",
    "train --data.root x": "needs a recipe first",
    "train cifar100-lt-10": "did you mean 'cifar100-lt-100'?",
    "train shapes-lt/cross-entrpy": "did you mean 'shapes-lt/cross-entropy'?",
    "train qqqqqqqq": "unknown recipe 'qqqqqqqq'; relatum recipes lists them all",
    "train nowhere.toml": "there is no recipe file nowhere.toml",
    "train shapes-lt --data.rot x": "unknown option --data.rot; did you mean '--data.root'?",
    "train shapes-lt --train.epoch 3": "unknown option --train.epoch; did you mean '--train.epochs'?",
    "train shapes-lt --epochs 3": "did you mean --train.epochs or --pretrain.epochs?",
    "train shapes-lt --weight-decay 0": "did you mean --relation.weight-decay or --train.weight-decay or",
    "train shapes-lt --qqqqqq 3": "unknown option --qqqqqq (see relatum train shapes-lt --help)",
    "train shapes-lt --train.epochs three": "--train.epochs must be a whole number, not 'three'",
    "train shapes-lt --train.epochs=2.5": "--train.epochs must be a whole number, not '2.5'",
    "train shapes-lt --train.lr fast": "--train.lr must be a number, not 'fast'",
    "train shapes-lt --train.lr nan": "'train.lr' must be a finite number",
    "train shapes-lt --train.steps 0.5 x": "--train.steps must be a number, not 'x'",
    "train shapes-lt --train.epochs": "--train.epochs needs a value",
    "train shapes-lt --train.epochs --train.lr 1": "--train.epochs needs a value",
    "train shapes-lt -x": "unknown option -x (see",
    "train shapes-lt --train.tensorboard=yes": "--train.tensorboard is a switch and takes no value",
    "train shapes-lt --train.epochs -1": "'train.epochs' is -1; it must be at least 1",
    "train shapes-lt --objective.name focall": "did you mean 'focal'? valid: balanced-bce, balanced-softmax,",
    "train shapes-lt --data.allow-double yes": "'yes' is one word too many",
    "train shapes-lt photos": "'photos' is one word too many",
    "train shapes-lt --data.batch-size 1": "a relation needs other samples",
    "train shapes-lt --train.device gpu": "unknown device 'gpu'",
    "train shapes-lt --model.name resnt20-cifar": "resnet20-cifar",
    "train shapes-lt --relation.heads 7": "7 attention heads do not divide",
    "train shapes-lt --model.weights nowhere.pth": "'nowhere.pth' does not exist",
    "demo --epoch 1": "did you mean '--epochs'?",
    "demo --epochs -1": "'train.epochs' is -1",
    "inspect": "relatum inspect needs PATH",
    "inspect a b": "'b' is one word too many",
    "inspect . --workers 0": "--workers is 0; it must be at least 1",
    "recipes shw": "did you mean 'show'?",
    "recipes show": "relatum recipes show needs RECIPE",
    "recipes show shape-lt": "did you mean 'shapes-lt'?",
    "evaluate": "relatum evaluate needs RUN",
    "evaluate x --shot-rul thirds": "did you mean '--shot-rule'?",
    "evaluate x --shot-rule third": "did you mean 'thirds'?",
    "evaluate x --tau-norm -1": "'tau_norm' is -1.0; it must be at least 0",
    "evaluate x --bootstrap 1.5": "--bootstrap must be a whole number",
    "predict": "relatum predict needs RUN",
    "predict x": "relatum predict needs IMAGE",
    "predict x y --format xml": "--format is 'xml'",
    "predict x y --top 0": "--top is 0; it must be at least 1",
    "report": "relatum report needs RUN",
    "export x": "relatum export needs OUT",
    "export x y --formats onx": "did you mean 'onnx'?",
    "bench qqqqqqqq": "unknown recipe 'qqqqqqqq'; relatum recipes lists them all",
    "bench --round 3": "unknown option --round; did you mean '--rounds'? (see relatum bench --help)",
    "bench --out x": "relatum bench leaves no run behind, so --out means nothing here; --json keeps the results",
    "bench --rounds 0": "--rounds is '0'; it must be a whole number of at least 1",
    "bench --steps": "--steps needs a value (see relatum bench --help)",
    "bench --steps 2 --steps 3": "--steps is there twice",
    "bench --json nowhere/b.json": "there is no folder nowhere",
    "bench --model.nam x": "did you mean '--model.name'?",
    "bench shapes-lt photos": "'photos' is one word too many",
    "bench --data.image-size 64": "generated images have 32 pixels a side, and this recipe wants 64",
    "bench imagenet-lt-resnet10": "give real ones with --data.root, or set --data.image-size 32",
}


@pytest.mark.parametrize("line", SLIPS)
def test_a_slip_is_one_sentence(refused, line):
    assert SLIPS[line] in refused(*line.split())


def test_a_folder_in_the_place_of_the_recipe(refused, photos):
    assert refused("train", photos).endswith(f"try: relatum train long-tail --data.root {photos}")


def test_mistakes_in_a_recipe_file_name_the_file(refused, tmp_path):
    (tmp_path / "a.toml").write_text("[data]\nrot = 3\n")
    assert refused("train", "a.toml") == "a.toml: unknown key 'data.rot'; did you mean 'root'?"
    (tmp_path / "b.toml").write_text("[data\n")
    assert refused("train", "b.toml").startswith("b.toml is not valid TOML")
    (tmp_path / "c.toml").write_text('[train]\nepochs = "many"\n')
    assert refused("train", "c.toml") == "c.toml: 'train.epochs' must be of type int, not 'many'."


def test_all_ways_to_write_an_option_arrive():
    words = ["--data.image_size=48", "--train.steps", "0.5", "0.7", "--relation.no-shared-classifier"]
    words += ["--data.root=-odd-", "--evaluate.adjust-tau", "-0.5", "--train.tensorboard"]
    config = override(RunConfig(), "prog", words, "")
    assert config.data.image_size == 48 and config.train.steps == (0.5, 0.7) and config.train.tensorboard
    assert not config.relation.shared_classifier and config.evaluate.adjust_tau == -0.5
    assert config.data.root == "-odd-"


def test_positional_only_parameters_take_words_and_options_may_stand_anywhere():
    def function(first: int, rest: tuple[str, ...], /, flag: bool = False, size: int = 1) -> tuple:
        return first, rest, flag, size

    assert call(function, "prog", ["--size", "3", "7", "a", "b", "--flag"]) == (7, ("a", "b"), True, 3)
    with pytest.raises(ConfigError, match="prog needs REST"):
        call(function, "prog", ["7"])


def _verb(monkeypatch, action):
    from relatum import verbs

    monkeypatch.setattr(verbs, "report", lambda args: action())


def test_our_warnings_are_one_line_and_those_of_others_are_silent(relatum, monkeypatch):
    def warn():
        from relatum.data.samplers import warn_double_correction

        warn_double_correction("class-balanced", True, False)
        warnings.warn("a stranger's words", stacklevel=1)

    _verb(monkeypatch, warn)
    code, out, err = relatum("report")
    assert (code, out) == (0, "")
    assert err.startswith("relatum: warning: double correction") and err.count("\n") == 1


def _raise(error):
    raise error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied", "/x/y"), "/x/y: Permission denied."),
        (OSError(28, "No space left on device"), "No space left on device."),
        (MemoryError(), "out of memory; lower --data.batch-size"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory"),
    ],
)
def test_troubles_of_the_machine_are_told_without_a_traceback(refused, monkeypatch, error, words):
    _verb(monkeypatch, lambda: _raise(error))
    assert words in refused("report")


def test_a_mistake_of_ours_is_not_hidden(monkeypatch):
    _verb(monkeypatch, lambda: _raise(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["report"])


@pytest.mark.parametrize(
    ("words", "full"),
    [
        (["--bad-images", "quarantine"], ["--data.bad-images", "quarantine"]),
        (["--on-nonfinite=skip"], ["--train.on-nonfinite=skip"]),
        (["--no-allow_outside"], ["--data.no-allow-outside"]),
        (["--out", "runs/x", "--train.lr", "0.1"], ["--out", "runs/x", "--train.lr", "0.1"]),
        (["--lr", "0.1"], ["--lr", "0.1"]),  # of train, or of pretrain?
        (["--train.bad-images", "raise"], ["--train.bad-images", "raise"]),
    ],
)
def test_a_name_may_stand_without_its_room_where_only_one_ends_so(words, full):
    from relatum.arguments import full_names
    from relatum.config import RunConfig

    assert full_names(RunConfig(), words) == full
