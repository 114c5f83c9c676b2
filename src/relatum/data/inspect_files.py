"""Look at every image once: is it readable, how large is it, and has the same content been seen before?"""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from relatum.data.decode import image_problem, opened_image, to_rgb
from relatum.data.files import open_regular
from relatum.data.source import FileSource, ImageSource

TINY_SIDE = 16
"""An image with a side of fewer pixels than this is tiny."""
ASPECT_FACTOR = 3.0
"""An image is oddly shaped if its width over height is more than this factor away from the split's median."""
REMARKS = {
    "wrong-suffix": "{} of another format than the name says",
    "animated": "{} with several pictures, of which the first is used",
    "rotated": "{} turned as the camera's mark says",
    "converted": "{} of other colours than 8-bit RGB or grey, converted",
}
"""What may be said of a sound image, in words about several of them."""
_FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jfif"),
    "MPO": (".jpg", ".jpeg", ".jfif"),  # what some cameras write: a JPEG with a second picture behind it
    "PNG": (".png",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "WEBP": (".webp",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm"),
}
_KNOWN_SUFFIXES = {suffix for suffixes in _FORMATS.values() for suffix in suffixes}
_TURNED = 0x0112  # the tag of the camera's rotation mark
_CHUNK = 32  # images per task: small enough for a smooth progress bar, large enough to make the tasks cheap

Place = tuple[str, int]
"""A split name and a position in it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What one look at an image told.

    Args:
        digest: hash of the file's bytes, or of the pixels where there is no file; empty if nothing could be read.
        width: pixels, after the camera's rotation mark; 0 if unreadable.
        height: pixels, after the camera's rotation mark; 0 if unreadable.
        mode: colour mode as stored, for example RGB, L (grey), RGBA, P (palette), CMYK.
        problem: why the image cannot be read; empty when it can.
        remarks: what is to be said of it although it can: a key of `REMARKS` and words each.
    """

    digest: bytes
    width: int = 0
    height: int = 0
    mode: str = ""
    problem: str = ""
    remarks: tuple[tuple[str, str], ...] = ()

    @property
    def words(self) -> str:
        """What to say of the image: its problem, else its size."""
        return self.problem or f"{self.width}x{self.height}"


@dataclass(frozen=True)
class ImageNote:
    """One image that deserves a word: where it is, and what is to be said of it."""

    split: str
    class_name: str
    file: str
    note: str = ""


@dataclass(frozen=True)
class Duplicate:
    """Images with exactly the same content: file bytes, or pixels where there are no files."""

    members: tuple[ImageNote, ...]

    @property
    def across_splits(self) -> bool:
        """Whether the content is in more than one split: what is tested on was trained on."""
        return len({m.split for m in self.members}) > 1

    @property
    def label_conflict(self) -> bool:
        """Whether the same content bears different class names."""
        return len({m.class_name for m in self.members}) > 1

    @property
    def repeated(self) -> bool:
        """Whether one class of one split holds the content more than once."""
        return len({(m.split, m.class_name) for m in self.members}) < len(self.members)

    def to_dict(self) -> dict[str, Any]:
        """Return the members and the three properties, ready for JSON."""
        flags = {name: getattr(self, name) for name in ("across_splits", "label_conflict", "repeated")}
        return {**flags, "members": [asdict(m) for m in self.members]}


@dataclass(frozen=True)
class Spread:
    """Smallest, median and largest of a number of pixels."""

    smallest: int
    median: float
    largest: int


@dataclass(frozen=True)
class Sizes:
    """Sizes and colour modes of the readable images of a split."""

    width: Spread
    height: Spread
    shorter_side: Spread
    distinct: int
    modes: dict[str, int]


def probe_file(path: str | Path) -> Probe:
    """Fully decode one file, exactly as training would, and hash it; never raises for a bad file."""
    try:
        with open_regular(path) as file:
            with opened_image(file) as image:
                mode = image.mode
                height, width = to_rgb(image).shape[:2]
                remarks = tuple(_remarks(image, Path(path).suffix.lower()))
            file.seek(0)
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()  # type: ignore[arg-type]
    except Exception as error:  # PIL's decoders raise whatever their format makes them raise
        return Probe(b"", problem=image_problem(error, path))
    return Probe(digest, width, height, mode, remarks=remarks)


def _remarks(image: Image.Image, suffix: str) -> Iterator[tuple[str, str]]:
    """Yield what is to be said of a sound image file; it may leave the image at another picture of the file."""
    kind = image.format or ""
    if suffix in _KNOWN_SUFFIXES and suffix not in _FORMATS.get(kind, ()):
        yield "wrong-suffix", f"a {kind} file"
    if image.getexif().get(_TURNED, 1) not in (0, 1):
        yield "rotated", f"rotation mark {image.getexif()[_TURNED]}"
    if image.has_transparency_data:
        yield "converted", f"{image.mode} with transparency, laid on white"
    elif image.mode.startswith("I"):
        yield "converted", f"{image.mode} (16 bits), scaled to 8"
    elif image.mode not in ("RGB", "L", "P", "1"):
        yield "converted", f"{image.mode}, converted to RGB"
    # a file cut off behind its first picture is sound for us; counting its pictures may fail
    with contextlib.suppress(Exception):
        if kind != "MPO" and getattr(image, "n_frames", 1) > 1:
            yield "animated", f"{image.n_frames} pictures"  # type: ignore[attr-defined]


def probe_pixels(source: ImageSource, index: int) -> Probe:
    """Load image `index` of a source that has no files, and hash its pixels; never raises for a bad image."""
    try:
        pixels = source.load(index)
    except MemoryError:
        raise
    except Exception as error:  # a user's dataset may raise anything
        return Probe(b"", problem=str(error) or type(error).__name__)
    height, width = pixels.shape[:2]
    # The shape belongs to the content: 2×8 and 4×4 images of one colour have the same bytes.
    return Probe(_digest(f"{height}x{width}:".encode() + pixels.tobytes()), width, height, "RGB")


def probe_source(
    source: ImageSource, indices: npt.NDArray[np.int64], *, workers: int, tick: Callable[[int], None]
) -> list[Probe]:
    """Probe the images `indices` (n,) in `workers` threads; `tick(n)` is called after every n more images.

    Threads are enough: reading, hashing and decoding all release Python's global lock.
    """

    def look(chunk: npt.NDArray[np.int64]) -> list[Probe]:
        if isinstance(source, FileSource):
            return [probe_file(source.paths[i]) for i in chunk]
        return [probe_pixels(source, int(i)) for i in chunk]

    chunks = [indices[start : start + _CHUNK] for start in range(0, len(indices), _CHUNK)]
    probes: list[Probe] = []
    with warnings.catch_warnings(), ThreadPoolExecutor(max_workers=workers) as pool:
        warnings.simplefilter("ignore")  # PIL grumbles about metadata; what matters becomes a finding
        try:
            for part in pool.map(look, chunks):
                probes.extend(part)
                tick(len(part))
        finally:
            pool.shutdown(cancel_futures=True)  # Ctrl-C does not wait for a million images
    return probes


def same_content(probes: Mapping[str, Sequence[Probe]]) -> list[list[Place]]:
    """Group the readable images of all splits by content; only groups of two and more, in order of appearance.

    Args:
        probes: probes of each split; a `Place` is (split, position in that sequence).
    """
    places: dict[bytes, list[Place]] = {}
    for split, looked in probes.items():
        for position, probe in enumerate(looked):
            if not probe.problem:
                places.setdefault(probe.digest, []).append((split, position))
    return [group for group in places.values() if len(group) > 1]


def spread(total: int, limit: int | None) -> npt.NDArray[np.int64]:
    """Return all positions below `total`, or `limit` of them at even distances, so that every region is sampled."""
    if limit is None or limit >= total:
        return np.arange(total, dtype=np.int64)
    return np.unique(np.linspace(0, total - 1, limit).round().astype(np.int64))


def sizes_of(probes: Sequence[Probe]) -> Sizes | None:
    """Summarise sizes and colour modes of the readable images; None if there is none."""
    readable = [probe for probe in probes if not probe.problem]
    if not readable:
        return None
    sides = np.array([(probe.width, probe.height) for probe in readable])
    distinct = len(np.unique(sides, axis=0))
    modes = dict(Counter(probe.mode for probe in readable).most_common())
    return Sizes(_spread(sides[:, 0]), _spread(sides[:, 1]), _spread(sides.min(axis=1)), distinct, modes)


def tiny_images(probes: Sequence[Probe]) -> list[int]:
    """Return the positions of readable images with a side below `TINY_SIDE` pixels."""
    return [i for i, probe in enumerate(probes) if not probe.problem and min(probe.width, probe.height) < TINY_SIDE]


def odd_shapes(probes: Sequence[Probe]) -> list[int]:
    """Return the positions of readable images whose shape is beyond `ASPECT_FACTOR` from the median shape."""
    aspect = {i: np.log(probe.width / probe.height) for i, probe in enumerate(probes) if not probe.problem}
    middle = np.median(list(aspect.values())) if aspect else 0.0
    return [i for i, value in aspect.items() if abs(value - middle) > np.log(ASPECT_FACTOR)]


def _spread(values: npt.NDArray[Any]) -> Spread:
    return Spread(int(values.min()), float(np.median(values)), int(values.max()))


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
