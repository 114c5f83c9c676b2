"""Files that run code or mislead, offered as weights: refused in one sentence, and nothing of them runs."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import pickle
import struct
import sys
import tarfile
import threading
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file

from relatum.errors import ModelError, RelatumError
from relatum.models import create_model, load_encoder, load_weights
from relatum.models.mae import create_mae, encoder_weights
from relatum.models.mae.convert import load_public
from relatum.models.weight_files import TORCH_SUFFIXES, read_weights


def _traps():
    spec = importlib.util.spec_from_file_location("weight_traps", Path(__file__).with_name("pickle_traps.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.TRAPS


TRAPS = _traps()


def _archive(path: Path, content: bytes, name: str = "data.pkl", compress: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compress) as archive:
        archive.writestr(f"archive/{name}", content)
        archive.writestr("archive/version", "3\n")


@pytest.mark.parametrize("form", ["bare", "archive"])
@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_as_weights_does_not_run(tmp_path, name, form):
    marker, path = tmp_path / "marker", tmp_path / "w.pth"
    content = TRAPS[name](marker)
    _archive(path, content) if form == "archive" else path.write_bytes(content)
    for suffix in (*TORCH_SUFFIXES, ".safetensors", ".t7", ".PTH"):
        other = path.rename(path.with_suffix(suffix))
        with pytest.raises(ModelError, match=r"w\."):
            read_weights(other)
        assert not marker.exists()
        path = other
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.load(path, weights_only=False)
    assert marker.exists()  # torch runs it where it is told to trust the file


class _Trap:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.marker),)


def _old_tar(path: Path, marker: Path) -> None:
    """The layout of torch before 0.1.10: a tar of pickles."""
    parts = {name: pickle.dumps(1, 2) for name in ("sys_info", "storages", "tensors")}
    parts["pickle"] = pickle.dumps(_Trap(marker), 2)
    parts["storages"] = pickle.dumps(_Trap(marker), 2)
    with tarfile.open(path, "w") as archive:
        for name, content in parts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def test_the_old_tar_layout_does_not_run(tmp_path):
    path, marker = tmp_path / "w.pth.tar", tmp_path / "marker"
    _old_tar(path, marker)
    with pytest.raises(ModelError, match=r"w\.pth\.tar"):
        read_weights(path)
    assert not marker.exists()
    with contextlib.suppress(Exception):
        torch.load(path, weights_only=False)
    assert marker.exists()


def test_torchscript_is_refused(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)).save(tmp_path / "w.pt")
        assert torch.jit.load(tmp_path / "w.pt")(torch.zeros(1, 2)).shape == (1, 2)
    with pytest.raises(ModelError, match=r"w\.pt"):
        read_weights(tmp_path / "w.pt")


def test_an_archive_that_unpacks_to_far_more_than_its_size(tmp_path):
    torch.save({"a": torch.zeros(2**21)}, tmp_path / "plain.pth")
    with zipfile.ZipFile(tmp_path / "plain.pth") as plain, zipfile.ZipFile(tmp_path / "bomb.pth", "w") as bomb:
        for entry in plain.namelist():
            bomb.writestr(entry, plain.read(entry), zipfile.ZIP_DEFLATED)
    assert set(read_weights(tmp_path / "plain.pth")) == {"a"}
    with pytest.raises(ModelError, match="unpack to"):
        read_weights(tmp_path / "bomb.pth")


def _header(text: str, data: bytes = b"\0" * 8, length: int | None = None) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def _entry(**changes: object) -> str:
    return json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}})


LYING = {
    "nothing": b"",
    "seven bytes": b"1234567",
    "a pickle": pickle.dumps({"a": 1}, 4),
    "header of an exabyte": _header(_entry(), length=2**60),
    "header of 100 MB": _header(_entry(), length=100_000_000),
    "header of minus one": _header(_entry(), length=2**64 - 1),
    "header cut": _header(_entry())[:20],
    "no JSON": _header("{a: 1}"),
    "a list": _header("[1]"),
    "not UTF-8": _header('{"\udcff": 1}'),
    "nested deeply": _header('{"a":' * 5000 + "1" + "}" * 5000),
    "NaN in the shape": _header(_entry().replace("[2]", "[NaN]")),
    "negative shape": _header(_entry(shape=[-2])),
    "shape of fractions": _header(_entry(shape=[2.5])),
    "shape that overflows": _header(_entry(shape=[2**40, 2**40])),
    "shape of a googol": _header(_entry(shape=[10**100])),
    "offsets past the end": _header(_entry(data_offsets=[0, 2**50])),
    "offsets backwards": _header(_entry(data_offsets=[8, 0])),
    "unknown type": _header(_entry(dtype="OBJECT")),
    "overlap": _header(
        json.dumps({n: {"dtype": "F32", "shape": [2], "data_offsets": o} for n, o in (("a", [0, 8]), ("b", [4, 12]))}),
        b"\0" * 12,
    ),
    "hole": _header(_entry(data_offsets=[8, 16]), b"\0" * 16),
    "data left over": _header(_entry(), b"\0" * 80),
    "metadata of numbers": _header('{"__metadata__": {"a": 1}, ' + _entry()[1:]),
}


@pytest.mark.parametrize("name", LYING)
def test_a_header_that_lies_is_refused(tmp_path, name):
    (tmp_path / "w.safetensors").write_bytes(LYING[name])
    with pytest.raises(ModelError, match="not a readable safetensors"):
        read_weights(tmp_path / "w.safetensors")


def test_the_honest_header_is_read_and_a_doubled_name_is_one_tensor_or_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(_header(_entry()))
    assert read_weights(path)["a"].tolist() == [0.0, 0.0]
    path.write_bytes(_header(_entry()[:-1] + ", " + _entry()[1:]))
    with contextlib.suppress(ModelError):
        assert list(read_weights(path)) == ["a"]


def test_every_flipped_byte_gives_tensors_or_a_model_error(tmp_path):
    generator = torch.Generator().manual_seed(0)
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(3), "b": torch.ones(2, 2)}, buffer)
    for name, content in (("w.pth", buffer.getvalue()), ("w.safetensors", save({"a": torch.ones(3)}))):
        refused = 0
        for _ in range(150):
            changed = bytearray(content)
            for at in torch.randint(len(content), (3,), generator=generator).tolist():
                changed[at] = int(torch.randint(256, (1,), generator=generator))
            (tmp_path / name).write_bytes(changed)
            try:
                read_weights(tmp_path / name)
            except ModelError:
                refused += 1
        assert refused > 10


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_what_is_no_regular_file_is_named_at_once(tmp_path, suffix):
    names = {"pipe": "pipe or a device", "folder": "folder", "gone": "does not exist", "loop": "cannot be read"}
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    (tmp_path / f"loop{suffix}").symlink_to(f"loop{suffix}")
    found: dict[str, str] = {}

    def read_all() -> None:
        for name in names:
            with contextlib.suppress(ModelError):
                try:
                    read_weights(tmp_path / f"{name}{suffix}")
                except ModelError as error:
                    found[name] = str(error)

    reader = threading.Thread(target=read_all, daemon=True)  # a reader that waits for the pipe must not stop the suite
    reader.start()
    reader.join(60)
    assert not reader.is_alive()
    assert all(words in found[name] for name, words in names.items()), found
    for odd in ("a\0b.pth", "a" * 5000 + ".pth", "/dev/zero"):
        with pytest.raises(ModelError):
            read_weights(Path(odd))


def test_a_link_to_a_file_is_followed(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "store")
    (tmp_path / "w.safetensors").symlink_to("store")
    assert read_weights(tmp_path / "w.safetensors")["a"].tolist() == [1.0]


def _endless():
    table: dict[str, object] = {}
    table["model"] = table
    return table


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (_endless(), "no table of tensors"),
        ({1: torch.ones(1)}, "no table of tensors"),
        ({"a": torch.ones(1).expand(10**12)}, "more values than the file"),
        ({"a": torch.ones(3, device="meta")}, "no plain tensor"),
        ({"a": torch.ones(3, 3).to_sparse()}, "no plain tensor"),
        ({"a": torch.ones(3, dtype=torch.complex64)}, "no plain tensor"),
    ],
)
def test_tensors_that_are_none_are_refused_before_a_model_is_touched(tmp_path, content, words):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(ModelError, match=words):
        read_weights(tmp_path / "w.pth")


@pytest.fixture(scope="module")
def vit():
    return create_model("vit-pico-p8", 3, img_size=32)


@pytest.mark.parametrize("door", ["weights", "encoder", "mae", "encoder_weights"])
def test_every_door_for_weights_refuses_a_trap_and_leaves_the_model(tmp_path, vit, door):
    marker, path = tmp_path / "marker", tmp_path / "w.pth"
    _archive(path, TRAPS["exec"](marker))
    model = create_mae("vit-pico-p8") if door == "mae" else vit
    before = {key: value.clone() for key, value in model.state_dict().items()}
    read = {"weights": load_weights, "encoder": load_encoder, "mae": load_public, "encoder_weights": None}[door]
    with pytest.raises(ModelError, match=r"w\.pth.*refused"):
        read(model, path) if read else encoder_weights(path)
    assert not marker.exists()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_tensors_with_absurd_names_are_one_error(tmp_path, vit):
    names = ["blocks." + "9" * 5000 + ".x", "\x1b[31mred", "a" * 10_000, "../../x", "", "__class__"]
    save_file({name: torch.ones(1) for name in names}, tmp_path / "w.safetensors")
    for read in (load_weights, load_encoder):
        with pytest.raises(RelatumError) as caught:
            read(vit, tmp_path / "w.safetensors")
        assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 5000
