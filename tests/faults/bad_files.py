"""Files as they go wrong on real discs, made for the tests of this folder."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image


def noise(seed: int, side: int = 16) -> Image.Image:
    """A noisy image; no two seeds give the same."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    """The bytes of an image file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def huge_png(width: int, height: int) -> bytes:
    """A PNG of a few dozen bytes that claims to be width x height."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")
    )


def huge_gif(side: int) -> bytes:
    """A GIF of a few dozen bytes that claims to be side x side."""
    image = b"," + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\x02\x02\x44\x01\x00;"
    return b"GIF89a" + struct.pack("<HHBBB", side, side, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff" + image


def huge_bmp(side: int) -> bytes:
    """A BMP of a few dozen bytes that claims to be side x side."""
    info = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 200, 0, 0, 54) + info + b"\0" * 100


def plant_folder(root: Path, counts: dict[str, int]) -> Path:
    """Write sound images: {class: how many}."""
    seed = 0
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            seed += 1
            noise(seed).save(root / name / f"{i:02d}.png")
    return root


BAD = {
    "bomb-error.png": "decompression bomb",
    "bomb-warning.png": "decompression bomb",
    "bomb.bmp": "decompression bomb",
    "bomb.gif": "decompression bomb",
    "bomb.ppm": "decompression bomb",
    "cut.jpg": "truncated",
    "cut.png": "truncated",
    "dangling.jpg": "a link to a file that is not there",
    "float.tif": "8 or 16 bits",
    "folder.jpg": "a folder, not a file",
    "itself.jpg": "symbolic links",
    "letter.jpg": "not an image in a known format",
    "pipe.jpg": "a named pipe, not a file",
    "postscript.jpg": "not an image in a known format",
    "strip.png": "1,000 times the other",
    "zero.jpg": "empty file",
}
"""Name of each bad file, and words of the reason for which it cannot be read."""


def plant_bad(folder: Path) -> None:
    """Write one file of each kind in `BAD`."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = encoded(noise(90, 64), "JPEG")
    contents = {
        "bomb-error.png": huge_png(20_000, 20_000),
        "bomb-warning.png": huge_png(10_000, 10_000),
        "bomb.bmp": huge_bmp(30_000),
        "bomb.gif": huge_gif(60_000),
        "bomb.ppm": b"P6 30000 30000 255\n" + b"\0" * 99,
        "cut.jpg": whole[: len(whole) // 2],
        "cut.png": encoded(noise(91, 64), "PNG")[:5000],
        "float.tif": encoded(Image.fromarray(np.ones((16, 16), np.float32)), "TIFF"),
        "letter.jpg": b"Dear Sir, this is a letter and no picture.",
        "postscript.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n",
        "strip.png": encoded(Image.new("RGB", (1, 2000)), "PNG"),
        "zero.jpg": b"",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "dangling.jpg").symlink_to(folder / "gone.jpg")
    (folder / "itself.jpg").symlink_to("itself.jpg")
    (folder / "folder.jpg").mkdir()
    os.mkfifo(folder / "pipe.jpg")


def plant_odd(folder: Path) -> None:
    """Write files that are odd but sound."""
    folder.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    noise(100).save(folder / "png-called.jpg", "PNG")
    noise(101).save(folder / "turned.jpg", exif=exif)
    noise(102).convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(np.arange(256, dtype=np.uint16).reshape(16, 16) * 257).save(folder / "deep.png")
    noise(103).convert("P").save(folder / "palette.png", transparency=0)
    noise(104).save(folder / "moving.gif", save_all=True, append_images=[noise(105), noise(106)])
    noise(107, side=1).save(folder / "dot.png")
    noise(108).save(folder / ("n" * 251 + ".png"))
    noise(109).save(folder / "new\nline \x1b[31m.png")
    noise(110).save(os.fsencode(folder) + b"/bytes\xff.png", "PNG")
