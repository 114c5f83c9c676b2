"""Recipe files: strict in, exact out, and every error names file, key and the nearest valid one."""

from __future__ import annotations

import datetime
import string
import typing
from dataclasses import dataclass, fields, is_dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relatum import config as config_module
from relatum.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from relatum.config_files import check, differences, flatten, from_dict, read_toml, to_dict, to_toml
from relatum.errors import ConfigError

CONFIGS = [kind for kind in vars(config_module).values() if isinstance(kind, type) and is_dataclass(kind)]
ROOMS = {
    f.name: type(getattr(RunConfig(), f.name)) for f in fields(RunConfig) if is_dataclass(getattr(RunConfig(), f.name))
}


def _read(tmp_path, text, name="mine.toml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return from_dict(read_toml(path), str(path))


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONFIGS, ids=lambda kind: kind.__name__)
def test_defaults_pass_their_own_check(kind):
    check(kind(), "defaults")
    assert from_dict({}, "nothing", kind) == kind()
    assert len(CONFIGS) == 8


@pytest.mark.parametrize("kind", CONFIGS, ids=lambda kind: kind.__name__)
def test_every_setting_has_a_sentence(kind):
    """The command line shows these as help; a setting without one would be a riddle."""
    import inspect
    import re

    source = inspect.getsource(kind)
    for f in fields(kind):
        if not is_dataclass(typing.get_type_hints(kind)[f.name]):
            assert re.search(rf"    {f.name}: .*\n    \"\"\"\S", source), f.name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[train]\nepoch = 3", r"unknown key 'train.epoch'; did you mean 'epochs'"),
        ("[trian]\nepochs = 3", r"unknown key 'trian'; did you mean 'train'"),
        ("train = 3", r"'train' must be a table, not 3"),
        ("out = 3", r"'out' must be of type str, not 3"),
        ("[train]\nepochs = 3.0", r"'train.epochs' must be of type int, not 3.0"),
        ("[train]\nepochs = '3'", r"'train.epochs' must be of type int, not '3'"),
        ("[train]\nepochs = true", r"'train.epochs' must be of type int, not True"),
        ("[train]\nlr = true", r"'train.lr' must be of type float, not True"),
        ("[train]\nlr = '0.1'", r"'train.lr' must be of type float, not '0.1'"),
        ("[train]\nlr = nan", r"'train.lr' must be a finite number, not nan"),
        ("[train]\nlr = inf", r"'train.lr' must be a finite number, not inf"),
        ("[train]\nlr = 1" + "0" * 400, r"'train.lr' must be a finite number"),
        ("[train]\nchannels_last = 1", r"'train.channels_last' must be of type bool, not 1"),
        ("[train]\nsteps = 0.5", r"'train.steps' must be a list, not 0.5"),
        ("[train]\nsteps = ['a']", r"'train.steps' must be of type float, not 'a'"),
        ("[train]\nlr = 1979-05-27", r"'train.lr' must be of type float, not datetime"),
        ("[train]\nepochs = 0", r"'train.epochs' is 0; it must be at least 1"),
        ("[train]\nlr = -0.1", r"'train.lr' is -0.1; it must be at least 0"),
        ("[train]\nmomentum = 1.5", r"'train.momentum' is 1.5; it must be between 0 and 1"),
        ("[data]\nval_fraction = 0.95", r"'data.val_fraction' is 0.95; it must be between 0 and 0.9"),
        ("[train]\noptimizer = 'sdg'", r"'train.optimizer' is 'sdg'; did you mean 'sgd'\? valid: adamw, muon, sgd"),
        ("[train]\noptimizer = ['sgd']", r"'train.optimizer' is \['sgd'\]"),
        ("[objective]\nname = 'balanced_softmax'", r"did you mean 'balanced-softmax'"),
        ("[relation]\nname = true", r"'relation.name' is True"),
        ("[train.lr]\nx = 1", r"'train.lr' must be of type float"),
    ],
)
def test_what_is_wrong_is_named_with_its_file_and_key(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words) as caught:
        _read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "mine.toml"))


def test_whole_numbers_are_fine_where_fractions_are_meant(tmp_path):
    config = _read(tmp_path, "[train]\nlr = 1\nsteps = [1, 0.5]")
    assert config.train.lr == 1.0
    assert isinstance(config.train.lr, float)
    assert config.train.steps == (1.0, 0.5)
    assert all(isinstance(step, float) for step in config.train.steps)


def test_check_finds_what_the_command_line_let_through():
    with pytest.raises(ConfigError, match=r"command line: 'train.lr' is -1.0"):
        check(RunConfig(train=TrainConfig(lr=-1.0)), "command line")
    with pytest.raises(ConfigError, match="must be of type int"):
        check(RunConfig(data=DataConfig(batch_size=True)), "here")
    with pytest.raises(ConfigError, match=r"'data.root' is .* not valid UTF-8"):
        check(DataConfig(root="caf\udce9"), "here", "data.")


def test_a_type_that_no_recipe_can_hold_is_said():
    @dataclass(frozen=True)
    class Odd:
        value: int | None = None

    Odd.__annotations__["value"] = int | None
    with pytest.raises(ConfigError, match="type that recipe files do not support"):
        from_dict({"value": 3}, "odd", Odd)


# -- files -------------------------------------------------------------------------------------------------------------


def test_extends_is_read_underneath_and_relative_to_the_file(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "base.toml").write_text("out = 'a'\n[train]\nlr = 0.5\nepochs = 7\n[data]\ncutout = 4\n")
    (tmp_path / "middle.toml").write_text("extends = 'base.toml'\n[train]\nlr = 0.25\nsteps = [0.5]\n")
    config = _read(tmp_path, "extends = '../middle.toml'\nout = 'b'\n[train]\nepochs = 9\n", "deep/top.toml")
    assert (config.out, config.train.lr, config.train.epochs) == ("b", 0.25, 9)
    assert (config.train.steps, config.data.cutout) == ((0.5,), 4)


@pytest.mark.parametrize(("length", "works"), [(5, True), (6, False)])
def test_a_chain_may_have_five_files(tmp_path, length, works):
    for number in range(length):
        parent = f"extends = 'r{number + 1}.toml'\n" if number < length - 1 else ""
        (tmp_path / f"r{number}.toml").write_text(f"{parent}[train]\nepochs = {number + 1}\n")
    if works:
        assert read_toml(tmp_path / "r0.toml") == {"train": {"epochs": 1}}
    else:
        with pytest.raises(ConfigError, match="more than 5 files extend each other"):
            read_toml(tmp_path / "r0.toml")


def test_a_circle_is_found(tmp_path):
    (tmp_path / "a.toml").write_text("extends = 'b.toml'")
    (tmp_path / "b.toml").write_text("extends = 'a.toml'")
    with pytest.raises(ConfigError, match="is there a circle"):
        read_toml(tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[train\n", "not valid TOML"),
        (b"lr = \xff", "not valid TOML"),
        (b"extends = 3", "extends must be the name of a file, not 3"),
        (b"extends = 'none.toml'", r"cannot read recipe file .*none.toml"),
        (b"extends = '.'", "cannot read recipe file"),
        (b'extends = "\\u0000"', "not valid TOML"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, content, words):
    (tmp_path / "bad.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_toml(tmp_path / "bad.toml")


# -- back to TOML ------------------------------------------------------------------------------------------------------


_WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


def _values(kind):
    """A strategy for valid dataclasses `kind`, from its types and ranges."""
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{f.name: _value(hints[f.name], f.metadata) for f in fields(kind)})


def _value(hint, limits):
    low, high = limits.get("low"), limits.get("high")
    if is_dataclass(hint):
        return _values(hint)
    if typing.get_origin(hint) is typing.Literal:
        return st.sampled_from(typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        if typing.get_origin(inner) is typing.Literal:
            entry = st.sampled_from(typing.get_args(inner))
        else:
            entry = {str: _WORDS, int: st.integers(0, 2**63 - 1), float: st.floats(0, 1)}[inner]
        return st.lists(entry, max_size=3).map(tuple)
    if "above" in limits:
        return st.floats(limits["above"], limits["below"], exclude_min=True, exclude_max=True)
    simple = {bool: st.booleans(), str: _WORDS}
    if hint is int:
        return st.integers(low, 2**63 - 1 if high is None else high)
    return simple[hint] if hint in simple else st.floats(low, high, allow_nan=False, allow_infinity=False)


@settings(max_examples=25, deadline=None)
@given(_values(RunConfig))
def test_toml_and_dict_round_trips_are_exact(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("trip") / "config.toml"
    path.write_bytes(to_toml(config).encode())
    assert from_dict(read_toml(path), "file") == config
    assert from_dict(to_dict(config), "dict") == config


@pytest.mark.parametrize("root", ["C:\\fotos", 'a "quoted" name', "Ünïcode/🦊", "line\nbreak\ttab", "del\x7fete"])
def test_awkward_paths_survive(tmp_path, root):
    config = RunConfig(data=DataConfig(root=root))
    assert _read(tmp_path, to_toml(config)) == config


def test_differences_name_the_flattened_keys():
    one = to_dict(RunConfig())
    assert differences(one, one) == {}
    other = to_dict(RunConfig(out="x", train=TrainConfig(lr=0.2, steps=(0.5,))))
    assert differences(one, other) == {
        "out": ("", "x"),
        "train.lr": (0.1, 0.2),
        "train.steps": ([0.8, 0.9], [0.5]),
    }
    assert differences({"a": {"b": 1}}, {}) == {"a.b": (1, None)}
    assert flatten({"a": {"b": {"c": 1}}, "d": 2}) == {"a.b.c": 1, "d": 2}


# -- anything at all ---------------------------------------------------------------------------------------------------

_KEYS = st.sampled_from([f.name for kind in CONFIGS for f in fields(kind)]) | st.text(
    string.ascii_lowercase, max_size=6
)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**320), 10**320)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([datetime.date(1979, 5, 27), datetime.time(7, 32)])
)
_TABLES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4), max_leaves=8
)


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(_KEYS, _TABLES, max_size=4))
def test_no_table_whatever_raises_anything_but_a_config_error(table):
    for kind in CONFIGS:
        try:
            config = from_dict(table, "fuzz", kind)
        except ConfigError as error:
            assert str(error).startswith("fuzz: ")
        else:
            check(config, "again")


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_one_wrong_value_in_a_valid_table_is_found_or_harmless(data):
    room = data.draw(st.sampled_from(sorted(ROOMS)))
    key = data.draw(st.sampled_from([f.name for f in fields(ROOMS[room])]))
    value = data.draw(_TABLES)
    table = to_dict(RunConfig())
    table[room][key] = value
    try:
        config = from_dict(table, "fuzz")
    except ConfigError as error:
        assert f"'{room}.{key}'" in str(error)
    else:
        found = getattr(getattr(config, room), key)
        assert (list(found) if isinstance(found, tuple) else found) == value


def test_replace_keeps_configs_frozen():
    config = ModelConfig()
    with pytest.raises(AttributeError):
        config.name = "other"
    assert replace(config, name="other").name == "other"
