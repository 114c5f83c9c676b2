"""A fingerprint of the data of a run, and what has changed between two of them, in words.

It takes names and labels of files, not their contents: two million are done in half a second, and the folder may lie
elsewhere. Of images in memory it takes the pixels.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from relatum.data.loaders import Loaders
from relatum.data.source import ArraySource, FileSource, ImageSource
from relatum.train.changes import Changes

_MOST_PIXELS = 1 << 28  # bytes; of larger arrays, images at equal distances
_MOST_CLASSES = 5
_AT_ONCE = 2048

Fingerprint = dict[str, Any]


def fingerprint(loaders: Loaders) -> Fingerprint:
    """Class names, and of each split the number of images, the counts by class and a hash, as JSON values."""
    sources = {"train": loaders.train.source} | {name: loader.source for name, loader in loaders.evals.items()}
    splits = {name: split_fingerprint(source) for name, source in sources.items()}
    return {"class_names": list(loaders.prior.names), "splits": splits}


def split_fingerprint(source: ImageSource) -> Fingerprint:
    """Number of images, counts by class, and a hash over labels and file names, or labels and pixels."""
    digest = hashlib.sha256(source.targets.astype("<i8").tobytes())
    if isinstance(source, FileSource):
        _add_names(digest, source.paths)
    elif isinstance(source, ArraySource):
        _add_pixels(digest, source.images)
    else:  # somebody's own dataset: which of its items, and no more
        digest.update(source.positions.astype("<i8").tobytes())
    counts = np.bincount(source.targets, minlength=source.num_classes).tolist()
    return {"images": len(source), "counts": counts, "sha256": digest.hexdigest()}


def _add_names(digest: Any, paths: Sequence[str]) -> None:
    """Add the names of files, in their order, without the folder that is common to all."""
    if not paths:
        return
    first, last = min(paths), max(paths)  # what these two have in common, all have
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    cut = itemgetter(slice(first.rfind(os.sep, 0, same) + 1, None))
    for start in range(0, len(paths), _AT_ONCE):  # twice as fast as all at once: it stays within the processor's cache
        names = map(cut, paths[start : start + _AT_ONCE])
        digest.update(("\0".join(names) + "\0").encode("utf-8", "surrogateescape"))


def data_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Changes:
    """Return what differs between two fingerprints, by "data.train" and the like, without the counts."""
    changes: Changes = {}
    if before["class_names"] != now["class_names"]:
        changes["data.class_names"] = (before["class_names"], now["class_names"])
    for split in dict.fromkeys([*before["splits"], *now["splits"]]):
        old, new = before["splits"].get(split), now["splits"].get(split)
        if old != new:
            changes[f"data.{split}"] = (_short(old), _short(new))
    return changes


def data_in_words(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say how two fingerprints differ."""
    parts = []
    if before["class_names"] != now["class_names"]:
        parts.append(f"data.class_names: {_names_in_words(before['class_names'], now['class_names'])}")
    for split in dict.fromkeys([*before["splits"], *now["splits"]]):
        old, new = before["splits"].get(split), now["splits"].get(split)
        if old != new:
            parts.append(f"data.{split}: {_split_in_words(old, new, before['class_names'], now['class_names'])}")
    return "; ".join(parts)


def _split_in_words(
    old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, names: Sequence[str], new_names: Sequence[str]
) -> str:
    if old is None or new is None:
        return f"{_images(old)} before, {_images(new, noun=False)} now"
    words = [f"{_images(old)} before, {_images(new, noun=False)} now"] if old["images"] != new["images"] else []
    if names == new_names:
        words += _classes_in_words(names, old["counts"], new["counts"])
    return ", ".join([*words, "another set of files, labels or pixels"])


def _classes_in_words(names: Sequence[str], old: Sequence[int], new: Sequence[int]) -> list[str]:
    changed = [f"class {name} {a} → {b}" for name, a, b in zip(names, old, new, strict=True) if a != b]
    more = len(changed) - _MOST_CLASSES
    return changed[:_MOST_CLASSES] + ([f"and {more} more classes"] if more > 0 else [])


def _names_in_words(old: Sequence[str], new: Sequence[str]) -> str:
    before, now = set(old), set(new)
    gone, fresh = [name for name in old if name not in now], [name for name in new if name not in before]
    if not gone and not fresh:
        return "in another order"
    parts = [f"gone are {_some(gone)}"] if gone else []
    return " and ".join([*parts, *([f"new are {_some(fresh)}"] if fresh else [])])


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_CLASSES} more" if len(names) > _MOST_CLASSES else ""
    return ", ".join(names[:_MOST_CLASSES]) + more


def _images(split: Mapping[str, Any] | None, *, noun: bool = True) -> str:
    if split is None:
        return "none"
    return f"{split['images']:,} images" if noun else f"{split['images']:,}"


def _short(split: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if split is None else {"images": split["images"], "sha256": split["sha256"]}


def _add_pixels(digest: Any, images: np.ndarray[Any, Any]) -> None:
    digest.update(repr(images.shape).encode())
    every = max(1, -(-images.nbytes // _MOST_PIXELS))
    for start in range(0, len(images), 1024 * every):
        digest.update(np.ascontiguousarray(images[start : start + 1024 * every : every]))
