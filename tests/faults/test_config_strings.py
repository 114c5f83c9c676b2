"""Strings in settings are words, never instructions: none is imported, fetched, evaluated or matched without end."""

from __future__ import annotations

import dataclasses
import importlib
import socket
import sys
import typing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relatum import BatchFormerV2, attach
from relatum.config import DataConfig, ModelConfig, RunConfig
from relatum.config_files import from_dict, to_dict, to_toml
from relatum.data import open_splits
from relatum.errors import ConfigError, ModelError, RelatumError
from relatum.models import create_model
from relatum.train.device import pick_device

EVIL = "relatum_evil_module"
SPELLINGS = [EVIL, f"{EVIL}.run", f"{EVIL}:run", f"__import__('{EVIL}')", f"python/{EVIL}", f"{EVIL}.py", f"{{{EVIL}}}"]


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module in reach of an import, in the working directory too, that leaves a mark when it is imported."""
    marker = tmp_path / "imported"
    (tmp_path / f"{EVIL}.py").write_text(f"open({str(marker)!r}, 'w').close()\nrun = print\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield marker
    assert not marker.exists()
    importlib.import_module(EVIL)
    assert marker.exists()  # it could have been imported all the time
    del sys.modules[EVIL]


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def _string_keys() -> list[tuple[str, str]]:
    rooms = {f.name: getattr(RunConfig(), f.name) for f in dataclasses.fields(RunConfig)}
    found = []
    for room, part in rooms.items():
        if dataclasses.is_dataclass(part):
            hints = typing.get_type_hints(type(part))
            found += [(room, key) for key, hint in hints.items() if hint is str or typing.get_origin(hint) is not None]
    return found


def test_no_setting_of_words_imports(evil):
    keys = _string_keys()
    assert len(keys) > 30 and ("model", "name") in keys and ("objective", "name") in keys
    accepted = 0
    for room, key in keys:
        for word in SPELLINGS:
            for value in (word, [word]):
                try:
                    config = from_dict({room: {key: value}}, "test")
                except ConfigError:
                    continue
                accepted += 1
                assert to_dict(config)[room][key] == value  # it stays a word
    assert accepted > len(SPELLINGS)


@pytest.mark.parametrize("word", SPELLINGS)
def test_those_who_use_the_words_do_not_import_either(evil, word):
    with pytest.raises(ModelError):
        create_model(word, 2)
    with pytest.raises(ModelError):
        create_model("resnet20-cifar", 2, weights=word)
    with pytest.raises(ModelError):
        create_model("vit-pico-p8", 2, encoder=word)
    with pytest.raises(RelatumError):
        attach(create_model("vit-pico-p8", 2), BatchFormerV2(at=word))
    with pytest.raises(ConfigError):
        pick_device(word)
    for data in (DataConfig(root=word), DataConfig(train_list=word), DataConfig(root=word, class_names=word)):
        with pytest.raises(RelatumError):
            open_splits(data)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "hf-hub:timm/resnet18.a1_in1k",
            "hf_hub:timm/resnet18",
            "HF-HUB:timm/resnet18",
            "timm/resnet18",
            "a/resnet18",
        ),
        *(
            "local-dir:/tmp",
            "local-dir:.",
            "LOCAL-DIR:/tmp",
            "file:///tmp/x",
            "https://example.org/resnet18",
            "/resnet18",
        ),
        *(
            "resnet18.hf-hub:a/b",
            "resnet18:x",
            "resnet18/../x",
            "resnet18\\x",
            "os.system",
            "builtins.eval",
            "",
            " ",
            ".",
        ),
        *(
            "resnet18 ",
            "resnet18\n",
            "resnet18\0",
            "résnet18",
            "resnet18.nosuchtag",
            "a" * 10_000,
            "resnet18.'); print('",
        ),
    ],
)
def test_a_model_name_is_looked_up_and_nothing_else(no_network, tmp_path, name):
    with pytest.raises(ModelError):
        create_model(name, 2)


def test_timm_itself_would_have_followed_the_scheme(no_network, tmp_path):
    import timm

    with pytest.raises(Exception, match=r"config\.json"):
        timm.create_model(f"local-dir:{tmp_path}")


def test_a_tag_of_timm_is_a_name_still(no_network):
    assert create_model("resnet18.a1_in1k", 2).num_classes == 2


@pytest.mark.parametrize(
    "at",
    [
        *("blocks.0-999999", "blocks.0-99999999999999999999", "9" * 60_000, "9" * 60_000 + "-" + "9" * 60_000),
        *("(a+)+$", "blocks.(0|1)*", ".*", "blocks.-1", "blocks.5-2", "1-2-3-4", "-" * 60_000, "", "\0", "blocks.٣-٤"),
    ],
)
def test_places_of_a_relation_are_names_and_short_ranges(at):
    model = create_model("vit-pico-p8", 2)
    with pytest.raises(RelatumError):
        attach(model, BatchFormerV2(at=at))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cpu:x",
        "cuda:99999999999999999999",
        "cuda:-1",
        "meta",
        "xla",
        "cpu;ls",
        "os.system",
        "CPU ",
        "\0",
        "gpu",
        "hpu",
    ],
)
def test_odd_devices_are_one_error(name):
    if torch.cuda.is_available():
        pytest.skip("a machine with CUDA knows other devices")
    with pytest.raises(ConfigError, match="device"):
        pick_device(name)


_PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.booleans().map(lambda _: 10**4500), st.floats(), st.text(max_size=20),
    st.dates(), st.just("0" * 600),
)  # fmt: skip
_ANY = st.recursive(_PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))
_ROOMS = [f.name for f in dataclasses.fields(RunConfig)]
_KEYS = sorted(
    {f.name for room in (DataConfig, ModelConfig, type(RunConfig().train)) for f in dataclasses.fields(room)}
)
_TABLES = st.dictionaries(
    st.sampled_from(_ROOMS) | st.text(max_size=6), st.dictionaries(st.sampled_from(_KEYS), _ANY, max_size=4) | _ANY
)


@given(table=_TABLES)
@settings(max_examples=150, deadline=None)
def test_any_table_is_a_config_or_one_config_error(table):
    try:
        config = from_dict(table, "somewhere")
    except ConfigError as error:
        assert str(error).startswith("somewhere: ") and len(str(error)) < 5000
    else:
        assert isinstance(to_toml(config), str)
