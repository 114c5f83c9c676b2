from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from relatum.data.source import FileSource
from relatum.errors import DataError


def _photo(height=6, width=9):
    across = np.linspace(0, 255, width).round().astype(np.uint8)
    down = np.linspace(255, 0, height).round().astype(np.uint8)
    return np.dstack([np.tile(across, (height, 1)), np.tile(down[:, None], (1, width)), np.full((height, width), 90)])


def _load(path):
    return FileSource([path], [0], ["a"]).load(0)


def _jpeg_bytes():
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, "JPEG")
    return buffer.getvalue()


def test_rgb_png_is_read_exactly(tmp_path):
    photo = _photo().astype(np.uint8)
    Image.fromarray(photo).save(tmp_path / "a.png")
    loaded = _load(tmp_path / "a.png")
    assert loaded.dtype == np.uint8
    assert np.array_equal(loaded, photo)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "I;16"])
def test_every_mode_becomes_three_channels(tmp_path, mode):
    photo = Image.fromarray(_photo().astype(np.uint8))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) * 257)
    else:
        image = photo.convert(mode)
    path = tmp_path / ("a.tif" if mode in ("CMYK", "YCbCr") else "a.png")
    image.save(path)
    loaded = _load(path)
    assert loaded.shape == (6, 9, 3)
    assert loaded.dtype == np.uint8
    # brightness stays where it was: lossy palettes and black-and-white come near, the others nearer
    reference = np.asarray(photo.convert("L") if mode in ("1", "L", "LA", "I;16") else photo).astype(float)
    assert abs(loaded.mean() - reference.mean()) < (40 if mode in ("1", "P") else 3)


def test_grey_16_bit_keeps_its_order_and_range(tmp_path):
    values = np.array([[0, 257, 30000, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    assert _load(tmp_path / "deep.png")[0, :, 0].tolist() == [0, 1, 117, 255]


def test_transparency_lies_on_white(tmp_path):
    pixels = np.zeros((1, 3, 4), dtype=np.uint8)
    pixels[0, :, 3] = [0, 255, 51]  # black: clear, opaque, one fifth
    Image.fromarray(pixels).save(tmp_path / "clear.png")
    assert _load(tmp_path / "clear.png")[0].tolist() == [[255] * 3, [0] * 3, [204] * 3]

    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putdata([0, 1])
    palette.save(tmp_path / "palette.png", transparency=0)
    assert _load(tmp_path / "palette.png")[0].tolist() == [[255] * 3, [40, 50, 60]]


def test_camera_rotation_is_obeyed(tmp_path):
    photo = Image.fromarray(_photo().astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to view
    photo.save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(_load(tmp_path / "turned.png"), np.rot90(np.asarray(photo), k=-1))


def test_float_pixels_are_refused(tmp_path):
    Image.fromarray(np.ones((3, 3), np.float32)).save(tmp_path / "f.tif")
    with pytest.raises(DataError, match=r"f\.tif.*8 or 16 bits"):
        _load(tmp_path / "f.tif")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.jpg", _jpeg_bytes()[:1500]),
        ("zero.jpg", b""),
        ("text.jpg", b"this is no picture, it is a letter"),
        ("half.png", None),
    ],
)
def test_broken_files_are_named(tmp_path, name, content):
    path = tmp_path / name
    if content is None:
        Image.fromarray(_photo(64, 64).astype(np.uint8)).save(path)
        content = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(content)
    with pytest.raises(DataError, match=name):
        _load(path)


def test_whole_jpeg_of_the_same_bytes_loads(tmp_path):
    (tmp_path / "whole.jpg").write_bytes(_jpeg_bytes())
    assert _load(tmp_path / "whole.jpg").shape == (64, 64, 3)


def test_missing_file_and_folder_are_named(tmp_path):
    source = FileSource([tmp_path / "gone.jpg", tmp_path], [0, 0], ["a"])
    with pytest.raises(DataError, match=r"not found.*gone\.jpg"):
        source.load(0)
    with pytest.raises(DataError, match="cannot read image"):
        source.load(1)
