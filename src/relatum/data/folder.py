"""Image folders: one folder per class, with or without train/val/test above them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from relatum.data.source import FileSource, ImageSource
from relatum.errors import DataError, suggest

SPLIT_FOLDERS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")


def read_folder(root: str | Path, class_names: Sequence[str] | None = None) -> dict[str, ImageSource]:
    """Read a folder of class folders.

    If `root` holds `train/` with class folders in it, `train/`, `val/` (or `valid/`, `validation/`) and `test/` are the
    splits and other folders beside them are not read; else the folders in `root` are the classes and all images are
    "train". Images are found at any depth below their class folder; hidden files and files without an image suffix are
    passed over.

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
        raise DataError(f"data folder not found: {base}. Give the folder that holds one folder of images per class.")
    folders = split_folders(base)
    names = list(class_names) if class_names is not None else sorted_names(class_folders(folders["train"]))
    return {split: _read_split(folder, names, split) for split, folder in folders.items()}


def split_folders(base: Path) -> dict[str, Path]:
    """Return the folder of each split; all is "train" where there are no split folders."""
    found: dict[str, Path] = {}
    for split, spellings in SPLIT_FOLDERS.items():
        # a folder `train` without folders inside holds pictures of trains: it is a class, not a split
        present = [base / s for s in spellings if (base / s).is_dir() and _subfolders(base / s)]
        if len(present) > 1:
            both = " and ".join(p.name for p in present)
            raise DataError(f"{base} holds both {both}; keep one folder of validation images.")
        if present:
            found[split] = present[0]
    if "train" in found:
        return found
    if found and len(found) == len(_subfolders(base)):
        raise DataError(f"{base} holds {', '.join(p.name for p in found.values())} but no train folder; add train/.")
    return {"train": base}


def _subfolders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [e.name for e in entries if e.is_dir() and not e.name.startswith(".") and e.name != "__MACOSX"]


def class_folders(folder: Path) -> list[str]:
    """Return the names of the class folders in `folder`, unsorted."""
    names = _subfolders(folder)
    if not names:
        raise DataError(
            f"no class folders in {folder}. Put the images of each class into a folder of its own, "
            f"for example {folder / 'cat' / '1.jpg'}."
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
                f"class folder {folder / name} is not among the {len(names)} known classes; "
                f"add the class to the training data, or remove or rename the folder: {suggest(name, names)}"
            )
        images = images_below(folder / name)
        if not images:
            raise DataError(
                f"class folder {folder / name} holds no images; add some ({', '.join(IMAGE_SUFFIXES[:4])}, ...) "
                "or remove the folder."
            )
        paths += images
        targets += [ids[name]] * len(images)
    return FileSource(paths, targets, names, name=f"{folder} ({split})")


def images_below(folder: Path) -> list[str]:
    """Return the image files below `folder`, sorted."""
    found: list[str] = []
    for here, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        found += [
            os.path.join(here, f)  # noqa: PTH118  (a Path for each of a million files is slow)
            for f in sorted(files)
            if f.lower().endswith(IMAGE_SUFFIXES) and not f.startswith(".")
        ]
    return found
