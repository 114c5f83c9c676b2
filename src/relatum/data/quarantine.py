"""Images that cannot be read, set aside before training: counted, listed, bounded, and never replaced by others.

They are taken out after the long-tail cut and the hold-out have chosen, so every other image stays where it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from relatum import processes
from relatum.config import DataConfig
from relatum.data.decode import ImageError
from relatum.data.files import shown
from relatum.data.source import ArraySource, FileSource, ImageSource, LabelError
from relatum.errors import DataError

SMALL_CLASS = 10
"""A class with fewer images than this has no bound of its own: one bad image would exceed it."""
_NAMED = 3
_BLOCK = 64

Found = list[tuple[int, str]]
"""Index of each bad image in its source, and the reason."""


@dataclass(frozen=True)
class BadImage:
    """One image that was set aside: where it is, its class, and why it cannot be read."""

    path: str
    class_name: str
    reason: str


@dataclass(frozen=True)
class Quarantine:
    """The images that were set aside.

    Args:
        splits: what was set aside of each split, in its order; splits that lost nothing are not named.
    """

    splits: Mapping[str, tuple[BadImage, ...]] = field(default_factory=dict)

    @property
    def images(self) -> int:
        """Number of images, over all splits."""
        return sum(map(len, self.splits.values()))

    @property
    def per_class(self) -> dict[str, int]:
        """Number of images of each class that lost some, over all splits; most first."""
        return dict(Counter(bad.class_name for found in self.splits.values() for bad in found).most_common())

    def sentence(self) -> str:
        """Say in one sentence what was set aside; "" if nothing was."""
        if not self.images:
            return ""
        words = "; ".join(f"{split} {len(found)} ({_counted(found)})" for split, found in self.splits.items())
        count = (
            "1 image cannot be read and is" if self.images == 1 else f"{self.images:,} images cannot be read and are"
        )
        return f"{count} set aside: {words}. manifest.json and the report list them."

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain lists, dicts and numbers for JSON."""
        splits = {split: [asdict(bad) for bad in found] for split, found in self.splits.items()}
        return {"images": self.images, "per_class": self.per_class, "splits": splits}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Quarantine:
        """Read what `to_dict` wrote."""
        return cls({split: tuple(BadImage(**bad) for bad in found) for split, found in content["splits"].items()})

    def differences(self, before: Quarantine) -> list[str]:
        """Say which images are set aside now and were not `before`, and the other way round."""
        now, then = self._places(), before._places()
        added = [f"now also {shown(path)} ({split})" for split, path in now if (split, path) not in then]
        return added + [f"no longer {shown(path)} ({split})" for split, path in then if (split, path) not in now]

    def _places(self) -> dict[tuple[str, str], None]:
        return {(split, bad.path): None for split, found in self.splits.items() for bad in found}


def set_aside(
    splits: Mapping[str, ImageSource],
    config: DataConfig,
    progress: Callable[[int, int], None] | None = None,
    *,
    shared: bool = False,
) -> tuple[dict[str, ImageSource], Quarantine]:
    """Decode every image of every split once and take out those that cannot be read.

    Args:
        splits: the sources, cut and held out already.
        config: `workers` threads look; `bad_limit` bounds what may be set aside.
        progress: called with (images done, images in all) of this process.
        shared: all processes call this: each looks at its share, and all come to the same result.

    Returns:
        The splits without the bad images, and the list of them.

    Raises:
        DataError: more of a split or of a class is bad than `bad_limit` allows, or a class would lose all its images.
    """
    bad = _agreed(splits, config.workers, progress, shared)
    for split, source in splits.items():
        _check_bounds(split, source, bad[split], config.bad_limit)
    kept = {split: _without(source, bad[split]) for split, source in splits.items()}
    listed = {split: _entries(source, bad[split]) for split, source in splits.items() if bad[split]}
    return kept, Quarantine(listed)


def _agreed(
    splits: Mapping[str, ImageSource], threads: int, progress: Callable[[int, int], None] | None, shared: bool
) -> dict[str, Found]:
    """Find the bad images: in one process all of them, in several a share each, exchanged afterwards."""
    rank, world = (processes.rank(), processes.world()) if shared else (0, 1)
    shares = {s: range(len(x) * rank // world, len(x) * (rank + 1) // world) for s, x in splits.items()}
    done, total = 0, sum(map(len, shares.values()))

    def tick(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    mine: dict[str, Found] | Exception
    try:
        mine = {split: find_bad(source, shares[split], threads, tick) for split, source in splits.items()}
    except Exception as error:
        if not shared:
            raise
        mine = error  # the others wait for this process: tell them first, then all stop alike
    parts = processes.from_all(mine) if shared else [mine]
    failed = next((part for part in parts if isinstance(part, Exception)), None)
    if failed is not None:
        raise failed
    found = [part for part in parts if not isinstance(part, Exception)]
    return {split: [entry for part in found for entry in part[split]] for split in splits}


def find_bad(source: ImageSource, indices: Sequence[int], threads: int, tick: Callable[[int], None]) -> Found:
    """Decode the images `indices` of a source and return those that cannot be read, in order.

    Files are decoded in `threads` threads; other sources, which may be a user's own code, one after the other.
    """
    if isinstance(source, ArraySource):  # checked when it was made
        tick(len(indices))
        return []
    blocks = [indices[first : first + _BLOCK] for first in range(0, len(indices), _BLOCK)]
    bad: Found = []
    pool = ThreadPoolExecutor(max(threads, 1) if isinstance(source, FileSource) else 1)
    try:
        for block, found in zip(blocks, pool.map(lambda block: _look(source, block), blocks), strict=True):
            bad += found
            tick(len(block))
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C does not wait for a million images
    return bad


def _look(source: ImageSource, block: Sequence[int]) -> Found:
    found: Found = []
    for index in block:
        try:
            source.load(index)
        except (LabelError, MemoryError):  # no fault of the image
            raise
        except ImageError as error:
            found.append((index, error.reason))
        except Exception as error:  # a user's dataset may raise anything
            if isinstance(source, FileSource):
                raise
            found.append((index, shown(str(error) or type(error).__name__)))
    return found


def _without(source: ImageSource, bad: Found) -> ImageSource:
    if not bad:
        return source
    kept = np.ones(len(source), dtype=bool)
    kept[[index for index, _ in bad]] = False
    return source.subset(kept)


def _entries(source: ImageSource, bad: Found) -> tuple[BadImage, ...]:
    return tuple(BadImage(source.describe(i), source.class_names[source.targets[i]], reason) for i, reason in bad)


def _check_bounds(split: str, source: ImageSource, bad: Found, limit: float) -> None:
    if not bad:
        return
    here = np.bincount(source.targets, minlength=source.num_classes)
    lost = np.bincount(source.targets[[index for index, _ in bad]], minlength=source.num_classes)
    if len(bad) > limit * len(source):
        raise DataError(_too_many(f"split '{split}'", len(bad), len(source), _entries(source, bad), limit))
    over = (here >= SMALL_CLASS) & (lost > limit * here)
    gone = (lost > 0) & (lost == here)
    for k in np.flatnonzero(over | gone)[:1].tolist():
        entries = tuple(e for e in _entries(source, bad) if e.class_name == source.class_names[k])
        what = f"class '{source.class_names[k]}' of split '{split}'"
        if gone[k]:
            raise DataError(
                f"{what} would lose all its images ({int(here[k])}), which cannot be read: {_named(entries)}. "
                "Repair them, or take the class out of the data."
            )
        raise DataError(_too_many(what, int(lost[k]), int(here[k]), entries, limit))


def _too_many(what: str, bad: int, images: int, entries: tuple[BadImage, ...], limit: float) -> str:
    return (
        f"{bad:,} of {images:,} images of {what} cannot be read ({bad / images:.1%}), more than data.bad_limit "
        f"({limit:.1%}) allows to set aside: {_counted(entries)}. {_named(entries)}. Repair them (`relatum inspect` "
        "lists all), or raise --data.bad-limit."
    )


def _named(entries: Sequence[BadImage]) -> str:
    words = "; ".join(f"{shown(bad.path)}: {bad.reason}" for bad in entries[:_NAMED])
    return words + (f"; and {len(entries) - _NAMED:,} more" if len(entries) > _NAMED else "")


def _counted(entries: Sequence[BadImage]) -> str:
    """Name the classes with their counts, most first; of many only the first few."""
    counts = Counter(bad.class_name for bad in entries).most_common()
    words = ", ".join(f"{name} {n}" for name, n in counts[:_NAMED])
    return words + (f", and {len(counts) - _NAMED:,} more classes" if len(counts) > _NAMED else "")
