"""What is wrong with the data, and what to do about it, in words. Every sentence follows from the inspected numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from relatum.data.inspect_files import REMARKS, TINY_SIDE

if TYPE_CHECKING:
    from relatum.data.inspect import Inspection
    from relatum.data.inspect_files import Duplicate, ImageNote

NOISY_COUNT = 5
"""With fewer training images than this, what is measured for a class is mostly chance."""
COARSE_COUNT = 10
"""With fewer evaluation images per class than this, one image moves its accuracy by more than 10 points."""
SMALL_RELATION = 8
SUGGESTED_BATCH = 128
_MODEL_SIZES = (32, 64, 96, 128, 160, 224)


@dataclass(frozen=True)
class Finding:
    """One kind of problem in the data.

    Args:
        kind: unreadable, bad-row, bad-folder, leak, label-conflict, empty-class, one-class, missing-class, look-alike,
            single-image, repeat, tiny, odd-shape, or one of the remarks wrong-suffix, animated, rotated, converted.
        severity: "error" (mend before training), "warning" or "note".
        count: how many images, groups or classes.
        text: the problem in words.
        examples: all cases, one line each.
    """

    kind: str
    severity: str
    count: int
    text: str
    examples: tuple[str, ...]


def find_problems(inspection: Inspection) -> tuple[Finding, ...]:
    """List what is wrong with the data, worst first; nothing for clean data."""
    found = (
        _finding("unreadable", "error", "{} cannot be read", "image", _unreadable(inspection)),
        _finding("bad-row", "error", "{} of the table cannot be used", "line", inspection.bad_rows),
        _finding("bad-folder", "error", "{} cannot be read or followed", "folder", inspection.bad_folders),
        _finding("leak", "error", "{} across splits", "duplicate", _groups(inspection, "across_splits")),
        _finding(
            "label-conflict", "error", "{} with different labels", "duplicate", _groups(inspection, "label_conflict")
        ),
        _finding("empty-class", "error", "{} without images", "class folder", _classes(inspection, "empty_classes")),
        _finding("one-class", "error", "{} in all: nothing to tell apart", "class", _only_class(inspection)),
        _finding(
            "missing-class", "warning", "{} absent from a split", "class", _classes(inspection, "missing_classes")
        ),
        _finding("look-alike", "warning", "{} of class names that look alike", "group", _look_alikes(inspection)),
        _finding("single-image", "warning", "{} with one training image", "class", _single_images(inspection)),
        _finding("repeat", "warning", "{} within a class", "duplicate", _groups(inspection, "repeated")),
        _finding("tiny", "note", f"{{}} with a side below {TINY_SIDE} pixels", "image", _notes(inspection, "tiny")),
        _finding("odd-shape", "note", "{} far wider or taller than usual", "image", _notes(inspection, "odd_shapes")),
        *(_finding(kind, "note", words, "image", _remarks(inspection, kind)) for kind, words in REMARKS.items()),
    )
    return tuple(finding for finding in found if finding is not None)


def advice(inspection: Inspection) -> list[str]:
    """Say what to do, in sentences with numbers and commands, most urgent first."""
    parts: tuple[Callable[[Inspection], Iterator[str]], ...] = (
        _mend_files, _mend_duplicates, _mend_classes, _method, _rare, _evaluation, _image_size, _batch_size, _partial,
    )  # fmt: skip
    return [sentence for part in parts for sentence in part(inspection)]


def amount(number: int, noun: str) -> str:
    """Return number and noun: `1 class`, `1,200 classes`, `2 copies`."""
    if number == 1:
        return f"1 {noun}"
    stem, end = (noun[:-1], "ies") if noun.endswith("y") else (noun, "es" if noun.endswith("s") else "s")
    return f"{number:,} {stem}{end}"


def _finding(kind: str, severity: str, text: str, noun: str, cases: Sequence[str]) -> Finding | None:
    if not cases:
        return None
    return Finding(kind, severity, len(cases), text.format(amount(len(cases), noun)), tuple(cases))


def _notes(inspection: Inspection, field: str) -> list[str]:
    notes: list[ImageNote] = [note for split in inspection.splits for note in getattr(split, field)]
    return [f"{note.file}: {note.note}" for note in notes]


def reason(note: ImageNote) -> str:
    """Why an image cannot be read, without the numbers that tell two truncated files apart."""
    return re.sub(r"\d+", "#", note.note)


def _unreadable(inspection: Inspection) -> list[str]:
    """All unreadable images, one of each reason first, so that a short list shows what there is."""
    notes = [note for split in inspection.splits for note in split.unreadable]
    first = {reason(note): i for i, note in reversed(list(enumerate(notes)))}
    order = sorted(range(len(notes)), key=lambda i: first[reason(notes[i])] != i)
    return [f"{notes[i].file}: {notes[i].note}" for i in order]


def _remarks(inspection: Inspection, kind: str) -> list[str]:
    return [f"{note.file}: {note.note}" for split in inspection.splits for note in split.remarks.get(kind, ())]


def _look_alikes(inspection: Inspection) -> list[str]:
    """Write each name also as its code points, where these are all that tells the names of a group apart."""
    return [" = ".join(f"'{name}' ({ascii(name)[1:-1]})" for name in group) for group in inspection.look_alikes]


def _only_class(inspection: Inspection) -> list[str]:
    names = list(inspection.train.counts)
    return names if len(names) == 1 and inspection.train.samples else []


def _groups(inspection: Inspection, flag: str) -> list[str]:
    chosen: list[Duplicate] = [group for group in inspection.duplicates if getattr(group, flag)]
    return [" = ".join(f"{m.file} ({m.split}, {m.class_name})" for m in group.members) for group in chosen]


def _classes(inspection: Inspection, field: str) -> list[str]:
    return [f"{name} ({split.name})" for split in inspection.splits for name in getattr(split, field)]


def _single_images(inspection: Inspection) -> list[str]:
    return [name for name, count in inspection.train.rare_classes.items() if count == 1]


def _mend_files(inspection: Inspection) -> Iterator[str]:
    bad = sum(len(split.unreadable) for split in inspection.splits)
    if bad:
        yield (
            f"{amount(bad, 'image')} cannot be read: repair or remove them, or set them aside with "
            "`--data.bad-images quarantine`, else training stops at the first."
        )
    if inspection.bad_rows:
        yield f"{amount(len(inspection.bad_rows), 'line')} of the table cannot be used: training stops at the first."
    if inspection.bad_folders:
        yield "Repair or remove the folders and links that cannot be followed: training stops at the first."


def _mend_duplicates(inspection: Inspection) -> Iterator[str]:
    leaks = [group for group in inspection.duplicates if group.across_splits]
    if leaks:
        pairs = sorted({"+".join(dict.fromkeys(m.split for m in group.members)) for group in leaks})
        yield (
            f"{amount(len(leaks), 'duplicate')} across splits ({', '.join(pairs)}): "
            "keep each image in one split only, else the measured score would be too good."
        )
    conflicts = sum(group.label_conflict for group in inspection.duplicates)
    if conflicts:
        yield (
            f"{amount(conflicts, 'duplicate')} with different labels: no model can get all copies right; "
            "keep the right label and remove the others."
        )
    extra = sum(len(g.members) - len({(m.split, m.class_name) for m in g.members}) for g in inspection.duplicates)
    if extra:
        yield (
            f"{amount(extra, 'surplus copy')} within a class of one split: "
            "better removed, since copies make a class look larger than it is."
        )


def _mend_classes(inspection: Inspection) -> Iterator[str]:
    if inspection.look_alikes:
        yield "Class names that look alike are different classes to training: join their folders if they are one."
    empty = sum(len(split.empty_classes) for split in inspection.splits)
    if empty:
        yield f"{amount(empty, 'class folder')} without images: add images or remove the folder; training refuses it."
    for split in inspection.splits:
        missing = len(split.missing_classes)
        if missing and split is inspection.train:
            yield f"{amount(missing, 'class')} without training images cannot be learnt: add some to train."
        elif missing:
            yield f"{amount(missing, 'class')} absent from {split.name}: nothing will be measured for them there."


def _method(inspection: Inspection) -> Iterator[str]:
    train = inspection.train
    if train.classes < 2:
        yield f"The training split has {amount(train.classes, 'class')} with images; a classifier needs at least two."
        return
    present = [count for count in train.counts.values() if count]
    facts = (
        f"The largest class has {max(present):,} images, the smallest {min(present):,} (ratio {train.imbalance:.3g})"
    )
    command = f"relatum train long-tail {inspection.options}"
    ratio = train.imbalance or 1.0
    if ratio < 3:
        plain = f"`relatum train long-tail/cross-entropy {inspection.options}`"
        yield f"{facts}: nearly balanced, no long-tail method is needed: {plain}."
    elif ratio <= 10:
        yield (
            f"{facts}: mildly imbalanced. Train with Balanced Softmax and BatchFormer, `{command}`, and once with "
            "`long-tail/cross-entropy` for comparison; look at the rare classes, not only at the mean."
        )
    else:
        yield (
            f"{facts}: long-tailed. Train with Balanced Softmax and BatchFormer, `{command}`, and judge by the "
            f"balanced accuracy and the rare classes ({amount(train.groups['few'], 'class')} below 20 images), "
            "not by plain accuracy."
        )


def _rare(inspection: Inspection) -> Iterator[str]:
    noisy = {name: n for name, n in inspection.train.rare_classes.items() if n < NOISY_COUNT}
    if noisy:
        named = ", ".join(f"{name} {n}" for name, n in list(noisy.items())[:3])
        more = ", …" if len(noisy) > 3 else ""
        yield (
            f"{amount(len(noisy), 'class')} with fewer than {NOISY_COUNT} training images ({named}{more}): "
            "results for them will be noisy; more images are worth more than any method."
        )


def _evaluation(inspection: Inspection) -> Iterator[str]:
    if len(inspection.splits) == 1:
        yield from _hold_out(inspection)
    for split in inspection.splits[1:]:
        present = [count for count in split.counts.values() if count]
        typical = int(np.median(present)) if present else 0
        if 0 < typical < COARSE_COUNT:
            yield (
                f"The median class of {split.name} has {amount(typical, 'image')}: one image moves a class's accuracy "
                f"by {100 / typical:.0f} points; trust means over classes and over seeds, not single classes."
            )


def _hold_out(inspection: Inspection) -> Iterator[str]:
    fraction = inspection.config.val_fraction
    if not fraction:
        yield "There is no validation or test split and no hold-out, so nothing is measured: `--data.val-fraction 0.2`."
        return
    yield (
        f"There is no validation or test split: training holds out {fraction:.0%} of each class "
        "(`--data.val-fraction` changes it)."
    )
    if single := _single_images(inspection):
        yield f"{amount(len(single), 'class')} with one image cannot lend any to the hold-out and will not be measured."
    if any(group.repeated for group in inspection.duplicates):
        yield "Remove the duplicates first: copies may fall on both sides of the hold-out and make the score too good."


def _image_size(inspection: Inspection) -> Iterator[str]:
    sizes = inspection.train.sizes
    if sizes is None:
        return
    side = sizes.shorter_side.median
    fitting = max([size for size in _MODEL_SIZES if size <= side], default=_MODEL_SIZES[0])
    shape = f"{sizes.width.median:.0f}x{sizes.height.median:.0f}"
    known = "All images are" if sizes.distinct == 1 else "The median image is"
    verdict = "fits" if fitting <= side else "is the smallest usual size"
    yield f"{known} {shape}: `--data.image-size {fitting}` {verdict}."


def _batch_size(inspection: Inspection) -> Iterator[str]:
    samples = _training_samples(inspection)
    batch = inspection.config.batch_size
    if samples < 2 * SMALL_RELATION:
        yield f"{amount(samples, 'training image')}: too few to relate {SMALL_RELATION} different ones per step."
    elif batch < SMALL_RELATION:
        fitting = min(SUGGESTED_BATCH, _power_below(samples // 2))
        yield (
            f"A batch of {batch} gives the relation little to relate: take at least {SMALL_RELATION}, "
            f"better `--data.batch-size {fitting}`."
        )
    elif samples < batch:
        fitting = max(SMALL_RELATION, _power_below(samples // 2))
        yield f"{samples} training images do not fill a batch of {batch}: take `--data.batch-size {fitting}`."


def _training_samples(inspection: Inspection) -> int:
    """Training images that remain if a hold-out is still to come."""
    held = inspection.config.val_fraction if len(inspection.splits) == 1 else 0.0
    return round(inspection.train.samples * (1 - held))


def _power_below(number: int) -> int:
    return 1 << (number.bit_length() - 1)


def _partial(inspection: Inspection) -> Iterator[str]:
    checked = sum(split.checked for split in inspection.splits)
    samples = sum(split.samples for split in inspection.splits)
    if not checked and samples:
        yield "No image was looked into: unreadable files and copies under other names are not known."
    elif checked < samples:
        yield (
            f"Only {checked:,} of {samples:,} images were read: more unreadable files and duplicates may exist; "
            "inspect without a limit to be sure."
        )
