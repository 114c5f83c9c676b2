"""Image folders: one folder per class, with or without train/val/test above them."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from relatum.data.files import opening_problem, shown
from relatum.data.source import FileSource, ImageSource
from relatum.errors import DataError, suggest

SPLIT_FOLDERS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
Complain = Callable[[str], None]
"""Told what is wrong with a folder or link. Training raises it; inspection collects it and reads on."""


def refuse(words: str) -> NoReturn:
    """Raise what is wrong as a `DataError`."""
    raise DataError(words)


def read_folder(root: str | Path, class_names: Sequence[str] | None = None) -> dict[str, ImageSource]:
    """Read a folder of class folders.

    If `root` holds `train/` with class folders in it, `train/`, `val/` (or `valid/`, `validation/`) and `test/` are the
    splits and other folders beside them are not read; else the folders in `root` are the classes and all images are
    "train". Images are found at any depth below their class folder; hidden files and files without an image suffix are
    passed over. Links are followed; one that leads back to a folder above it, or nowhere, is refused by name.

    Class ids follow `class_names` if given, else the sorted names of the training split's folders. Sorted as strings
    '10' comes before '2', which would permute numbered classes: if *all* names are whole numbers they are sorted
    as numbers. Give `class_names` wherever another order holds.

    Args:
        root: the folder.
        class_names: folder name of each class id; may name classes without a folder.

    Returns:
        The splits that were found, always with "train".
    """
    base = Path(root)
    if not base.is_dir():
        raise DataError(
            f"data folder not found: {shown(base)}. Give the folder that holds one folder of images per class."
        )
    folders = split_folders(base)
    names = list(class_names) if class_names is not None else sorted_names(class_folders(folders["train"]))
    return {split: _read_split(folder, names, split) for split, folder in folders.items()}


def split_folders(base: Path, complain: Complain = refuse) -> dict[str, Path]:
    """Return the folder of each split; all is "train" where there are no split folders."""
    found: dict[str, Path] = {}
    for split, spellings in SPLIT_FOLDERS.items():
        # a folder `train` without folders inside holds pictures of trains: it is a class, not a split
        present = [base / s for s in spellings if (base / s).is_dir() and _subfolders(base / s, complain)]
        if len(present) > 1:
            both = " and ".join(p.name for p in present)
            raise DataError(f"{shown(base)} holds both {both}; keep one folder of validation images.")
        if present:
            found[split] = present[0]
    if "train" in found:
        return found
    if found and len(found) == len(_subfolders(base, complain)):
        names = ", ".join(p.name for p in found.values())
        raise DataError(f"{shown(base)} holds {names} but no train folder; add train/.")
    return {"train": base}


def _subfolders(folder: Path, complain: Complain) -> list[str]:
    return [name for name in _listed(folder, complain)[0] if name != "__MACOSX"]


def class_folders(folder: Path, complain: Complain = refuse) -> list[str]:
    """Return the names of the class folders in `folder`, unsorted."""
    names = _subfolders(folder, complain)
    if not names:
        raise DataError(
            f"no class folders in {shown(folder)}. Put the images of each class into a folder of its own, "
            f"for example {shown(folder / 'cat' / '1.jpg')}."
        )
    return names


def sorted_names(names: list[str]) -> list[str]:
    """Sort class names as strings, or as numbers if all are whole numbers."""
    if all(n.isascii() and n.isdigit() for n in names):
        return sorted(names, key=lambda n: (int(n), n))
    return sorted(names)


def _read_split(folder: Path, names: list[str], split: str) -> FileSource:
    ids = {name: k for k, name in enumerate(names)}
    paths: list[str] = []
    targets: list[int] = []
    for name in sorted_names(class_folders(folder)):
        if name not in ids:
            raise DataError(
                f"class folder {shown(folder / name)} is not among the {len(names)} known classes; add the class to "
                f"the training data, or remove or rename the folder: {_nearest_class(name, names)}"
            )
        images = images_below(folder / name)
        if not images:
            raise DataError(
                f"class folder {shown(folder / name)} holds no images; add some ({', '.join(IMAGE_SUFFIXES[:4])}, ...) "
                "or remove the folder."
            )
        paths += images
        targets += [ids[name]] * len(images)
    return FileSource(paths, targets, names, name=f"{folder} ({split})")


def look_alikes(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Group the names that a person cannot tell apart, or hardly: other Unicode forms, capitals, spaces at the ends."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(unicodedata.normalize("NFKC", name).strip().casefold(), []).append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _nearest_class(name: str, names: list[str]) -> str:
    same = [n for n in names if unicodedata.normalize("NFC", n) == unicodedata.normalize("NFC", name)]
    if same:
        return f"'{shown(same[0])}' looks the same but is spelt in another Unicode form (NFC and NFD)."
    return shown(suggest(name, names))


def images_below(folder: Path, complain: Complain = refuse) -> list[str]:
    """Return the image files below `folder`, sorted; folders with an image's name and no images are among them."""
    return _walk(str(folder), (), complain)


def _walk(folder: str, above: tuple[tuple[int, int], ...], complain: Complain) -> list[str]:
    """Collect images; `above` are device and inode of the folders on the way here, by which a circle is noticed."""
    status = os.stat(folder)  # noqa: PTH116  (as below: a Path for each of a million files is slow)
    here = (status.st_dev, status.st_ino)
    if here in above:
        complain(
            f"{shown(folder)} is a link to a folder that it lies in: its images would be found again and again. "
            "Remove the link."
        )
        return []
    folders, files = _listed(folder, complain)
    found = [os.path.join(folder, f) for f in sorted(files) if f.lower().endswith(IMAGE_SUFFIXES)]  # noqa: PTH118
    for name in sorted(folders):
        inside = os.path.join(folder, name)  # noqa: PTH118
        images = _walk(inside, (*above, here), complain)
        # an empty folder called 1.jpg stands where an image should be: reading it says so
        found += images if images or not name.lower().endswith(IMAGE_SUFFIXES) else [inside]
    return found


def _listed(folder: str | Path, complain: Complain) -> tuple[list[str], list[str]]:
    """Return the names of the folders and of all else in `folder`, hidden ones left out."""
    folders: list[str] = []
    files: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    (folders if _is_folder(entry, complain) else files).append(entry.name)
    except OSError as error:
        complain(f"cannot read folder {shown(folder)}: {opening_problem(error, folder)}. Mend it or take it away.")
    return folders, files


def _is_folder(entry: os.DirEntry[str], complain: Complain) -> bool:
    """Whether an entry is a folder; a broken link that may have been meant as one is a problem."""
    try:
        if entry.is_dir():
            return True
        broken = entry.is_symlink() and not os.path.exists(entry.path)  # noqa: PTH110
        reason = "leads nowhere"
    except OSError as error:  # a link to itself
        broken, reason = True, opening_problem(error, entry.path)
    # with an image's ending it is a missing image, with another it would have been passed over anyway
    if broken and not os.path.splitext(entry.name)[1]:  # noqa: PTH122
        complain(f"the link {shown(entry.path)} is broken ({reason}). Repair or remove it.")
    return False
