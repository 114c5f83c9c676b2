"""Pickles that run code, offered as data: refused, and the payload does not run."""

from __future__ import annotations

import contextlib
import copyreg
import importlib.util
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from relatum.data.cifar import read_cifar
from relatum.data.pickles import load_pickle
from relatum.errors import DataError


def _helper(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


TRAPS = _helper("pickle_traps").TRAPS


def _trusting(content: bytes) -> None:
    with contextlib.suppress(Exception):
        pickle.loads(content)


@pytest.mark.parametrize("name", TRAPS)
@pytest.mark.parametrize("place", ["train", "meta"])
def test_a_trap_among_the_cifar_files_is_refused_and_does_not_run(tmp_path, name, place):
    marker = tmp_path / "marker"
    content = TRAPS[name](marker)
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    good = {"data": np.zeros((1, 3072), np.uint8), "fine_labels": [0]}
    (folder / "train").write_bytes(pickle.dumps(good, 2))
    read_cifar(tmp_path, "cifar100")
    (folder / place).write_bytes(content)
    with pytest.raises(DataError, match=str(folder / place)):
        read_cifar(tmp_path, "cifar100")
    assert not marker.exists()
    _trusting(content)
    assert marker.exists()  # the trap works where it is trusted


def test_an_extension_code_is_refused(tmp_path):
    marker = tmp_path / "marker"
    copyreg.add_extension("builtins", "exec", 240)
    try:
        for cached in (False, True):  # the second time, the usual reader does not even ask for the name
            code = f"open({str(marker)!r}, 'w').close()".encode()
            content = b"\x80\x02\x82\xf0(X" + struct.pack("<I", len(code)) + code + b"tR."
            (tmp_path / "f").write_bytes(content)
            with pytest.raises(DataError, match="EXT1"):
                load_pickle(tmp_path / "f")
            assert not marker.exists()
            _trusting(content)
            assert marker.exists(), cached
            marker.unlink()
    finally:
        copyreg.remove_extension("builtins", "exec", 240)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"Pmodule\n.", "PERSID"),
        (b"\x80\x02N\x51.", "BINPERSID"),
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)\x81.", "NEWOBJ"),
        (b"\x80\x04cnumpy\nndarray\n)}\x92.", "NEWOBJ_EX"),
        (b"(cnumpy\nndarray\no.", "OBJ"),
        (b"(inumpy\nndarray\n.", "INST"),
        (b"\x80\x05\x97.", "NEXT_BUFFER"),
        (b"\x80\x04\x8f.", "EMPTY_SET"),
        (b"cnumpy\nload\n.", "numpy.load"),
        (b"cnumpy.core.multiarray\nfromfile\n.", "fromfile"),
        (b"cnumpy\ncore.multiarray._reconstruct\n.", "numpy.core"),
        (b"cevil.core.multiarray\n_reconstruct\n.", "evil"),
        (b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.", "__globals__"),
        (b"cnumpy\nndarray\n(K\x01tR.", "ndarray with other arguments"),
        (b"cnumpy\ndtype\n(X\x01\x00\x00\x00OtR.", "not of plain numbers"),
        (b"cnumpy\ndtype\n(X\x04\x00\x00\x00u1,OtR.", "not of plain numbers"),
        (b"cnumpy\ndtype\n}b.", "changes what is no array"),  # the thing itself must not take a state
        (b"c_codecs\nencode\nN}\x86b.", "changes what is no array"),
        (b"c_codecs\nencode\n(X\x01\x00\x00\x00xX\x05\x00\x00\x00rot13tR.", "encode with other arguments"),
    ],
)
def test_every_step_that_is_not_data_is_refused(tmp_path, content, words):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(DataError, match=words):
        load_pickle(tmp_path / "f")


def _array_pickle(shape, code=b"u1", content=b"\0"):
    head = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
    kind = b"cnumpy\ndtype\nU" + bytes([len(code)]) + code + b"K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xff"
    kind += b"J\xff\xff\xff\xffK\x00tb"
    return head + shape + kind + b"\x89U" + bytes([len(content)]) + content + b"tb."


def test_the_hand_made_array_is_one(tmp_path):
    (tmp_path / "f").write_bytes(_array_pickle(b"K\x03\x85", content=b"abc"))
    assert load_pickle(tmp_path / "f").tolist() == [97, 98, 99]
    assert pickle.loads(_array_pickle(b"K\x03\x85", content=b"abc"), encoding="latin1").tolist() == [97, 98, 99]


BOMBS = {
    "shape beyond the content": _array_pickle(b"J\xff\xff\xff\x7f\x85"),
    "shape of a googol": _array_pickle(b"\x8a\x2a" + b"\xff" * 41 + b"\x00\x85"),
    "negative shape": _array_pickle(b"J\xff\xff\xff\xff\x85"),
    "type of two gigabytes": _array_pickle(b"K\x01\x85", b"V2147483647"),
    "memo of two billion places": b"\x80\x02Nr\xff\xff\xff\x7f" + b"K\x01.",
    "string of a terabyte": b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"x.",
    "bytes of a terabyte": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",
    "billion laughs": b"\x80\x02]q\x00(NNe0" + b"".join(
        b"]q" + bytes([i]) + b"(" + (b"h" + bytes([i - 1])) * 10 + b"e0" for i in range(1, 60)) + b"h;.",
    "tuple as a key, nested 300,000 times": b"\x80\x02}N" + b"\x85" * 300_000 + b"Ns.",
    "number of a million digits": b"L" + b"9" * 1_000_000 + b"L\n.",
    "list in itself": b"\x80\x02]q\x00h\x00a.",
}  # fmt: skip


_IN_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
from relatum.data.pickles import load_pickle
from relatum.errors import DataError
resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
for file in sorted(Path(sys.argv[1]).iterdir()):
    try:
        load_pickle(file)
        print("loaded", file.name)
    except DataError as error:
        print("memory" if isinstance(error.__cause__, MemoryError) else "refused", file.name)
"""


def test_a_small_file_cannot_ask_for_much(tmp_path):
    """In a process with little memory: an attempt to take what a file claims, or to follow it down, would end it."""
    for name, content in BOMBS.items():
        (tmp_path / name).write_bytes(content)
    command = [sys.executable, "-c", _IN_LITTLE_MEMORY, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr[-500:]
    assert found.stdout.splitlines() == [f"refused {name}" for name in sorted(BOMBS)]


def test_deep_lists_are_harmless(tmp_path):
    (tmp_path / "train").write_bytes(b"\x80\x02}(U\x04dataNU\x0bfine_labels" + b"]" * 60_000 + b"a" * 59_999 + b"u.")
    with pytest.raises(DataError, match="fine_labels"):
        read_cifar(tmp_path, "cifar100")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "exhausted|empty|opcode"),
        (b".", "Unpack"),
        (b"NN.", "Unpack"),
        (b"\x80\xff N.", "protocol 255"),
        (b"\x80\x06N.", "protocol 6"),
        (b"\xff\xd8\xff\xe0 a photo", "Unpack"),
        (b"PK\x03\x04 an archive", "Unpack|PERSID"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8)}, 2)[:-40], "Unpack"),
        (pickle.dumps([1, 2, 3])[:-1], "Unpack"),
        (b"h\x07.", "Unpack"),
        (b"t.", "Unpack"),
        (b"R.", "Unpack"),
        (b"(N(s.", "Unpack"),
    ],
)
def test_what_is_no_pickle_is_named(tmp_path, content, words):
    (tmp_path / "some-file").write_bytes(content)
    with pytest.raises(DataError, match=f"some-file.*(?:{words})"):
        load_pickle(tmp_path / "some-file")


def test_every_flipped_byte_gives_data_or_a_data_error(tmp_path):
    rng = np.random.default_rng(0)
    good = bytearray(pickle.dumps({"data": np.zeros((1, 48), np.uint8), "labels": [1, 2], "names": ["a", "b"]}, 2))
    refused = 0
    for _ in range(1500):
        changed = bytearray(good)
        changed[rng.integers(len(good))] = rng.integers(256)
        (tmp_path / "f").write_bytes(changed)
        try:
            load_pickle(tmp_path / "f")
        except DataError:
            refused += 1
    assert 300 < refused < 1500


def test_pipes_folders_and_absent_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder", "gone"):
        with pytest.raises(DataError, match=f"{name}.*not a regular"):
            load_pickle(tmp_path / name)


def test_new_and_old_spellings_of_numpy_are_read(tmp_path):
    for seed, dtype in enumerate(("u1", "<i8", ">i4", "<f4", "?", ">f2")):
        array = np.random.default_rng(seed).integers(0, 2, (3, 4)).astype(dtype)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            for order in ("C", "F"):
                content = pickle.dumps([array.copy(order), array[0, 0]], protocol)
                for text in (content, content.replace(b"numpy._core.", b"numpy.core.") if protocol < 4 else content):
                    (tmp_path / "f").write_bytes(text)
                    found, number = load_pickle(tmp_path / "f")
                    assert np.array_equal(found, array) and found.dtype == array.dtype and number == array[0, 0]
