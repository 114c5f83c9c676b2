"""Each sentence of advice appears exactly when its condition holds."""

from __future__ import annotations

import pytest

from relatum.config import DataConfig
from relatum.data.advice import advice, amount
from relatum.data.inspect import Inspection, SplitInspection
from relatum.data.inspect_files import Duplicate, ImageNote, Sizes, Spread


def split(name: str = "train", counts: dict[str, int] | None = None, **changes) -> SplitInspection:
    counts = {"a": 200, "b": 200} if counts is None else counts
    given = {
        "checked": sum(counts.values()),
        "empty_classes": (),
        "missing_classes": (),
        "unreadable": (),
        "sizes": None,
        "tiny": (),
        "odd_shapes": (),
    }
    return SplitInspection(name=name, counts=counts, **{**given, **changes})


def inspection(*splits: SplitInspection, duplicates=(), **config) -> Inspection:
    splits = splits or (split(), split("val"))
    return Inspection("photos", "--data.root photos", tuple(splits), tuple(duplicates), DataConfig(**config))


def said(result: Inspection, words: str) -> bool:
    return any(words in sentence for sentence in advice(result))


def image(split_name: str, class_name: str) -> ImageNote:
    return ImageNote(split_name, class_name, "x.png")


@pytest.mark.parametrize(
    ("smallest", "words"),
    [(200, "nearly balanced"), (67, "nearly balanced"), (66, "mildly"), (20, "mildly"), (19, "long-tailed")],
)
def test_method_follows_the_imbalance(smallest: int, words: str) -> None:
    result = inspection(split(counts={"a": 200, "b": smallest}), split("val"))
    heard = {word for word in ("nearly balanced", "mildly", "long-tailed") if said(result, f": {word}")}
    assert heard == {words}
    recipe = "long-tail/cross-entropy" if words == "nearly balanced" else "long-tail"
    assert said(result, f"`relatum train {recipe} --data.root photos")
    assert said(result, "Balanced Softmax") == (words != "nearly balanced")


def test_balanced_clean_data_gets_one_sentence() -> None:
    assert len(advice(inspection())) == 1


def test_one_class_is_too_few() -> None:
    assert said(inspection(split(counts={"a": 200}), split("val")), "at least two")
    assert not said(inspection(), "at least two")


@pytest.mark.parametrize(("count", "expected"), [(4, True), (5, False)])
def test_noise_of_very_rare_classes(count: int, expected: bool) -> None:
    assert said(inspection(split(counts={"a": 50, "b": 50, "rare": count}), split("val")), "noisy") == expected


def test_very_rare_classes_are_named_rarest_first() -> None:
    counts = {"a": 50, "p": 4, "q": 1, "r": 3, "s": 2}
    assert said(inspection(split(counts=counts), split("val")), "(q 1, s 2, r 3, …)")


def test_duplicates_get_their_own_advice() -> None:
    leak = Duplicate((image("train", "a"), image("val", "a")))
    conflict = Duplicate((image("train", "a"), image("train", "b")))
    repeat = Duplicate((image("train", "a"), image("train", "a"), image("train", "a")))
    sentences = {"leak": "score would be too good", "conflict": "different labels", "repeat": "2 surplus copies"}
    for name, group in {"leak": leak, "conflict": conflict, "repeat": repeat}.items():
        result = inspection(duplicates=[group])
        assert {key for key, words in sentences.items() if said(result, words)} == {name}
    assert said(inspection(duplicates=[leak]), "1 duplicate across splits (train+val)")


def test_copies_matter_for_the_hold_out() -> None:
    repeat = Duplicate((image("train", "a"), image("train", "a")))
    words = "both sides of the hold-out"
    assert said(inspection(split(), duplicates=[repeat]), words)
    assert not said(inspection(split()), words)
    assert not said(inspection(duplicates=[repeat]), words)


def test_unreadable_empty_and_missing() -> None:
    bad = split("val", unreadable=(image("val", "a"),))
    assert said(inspection(split(), bad), "1 image cannot be read")
    assert said(inspection(split(empty_classes=("c", "d")), split("val")), "2 class folders without images")
    assert said(inspection(split(missing_classes=("c",)), split("val")), "cannot be learnt")
    assert said(inspection(split(), split("val", missing_classes=("c",))), "1 class absent from val")
    for words in ("cannot be read", "without images", "cannot be learnt", "absent from"):
        assert not said(inspection(), words)


@pytest.mark.parametrize(("per_class", "expected"), [(9, "11 points"), (3, "33 points"), (10, None)])
def test_coarse_validation(per_class: int, expected: str | None) -> None:
    result = inspection(split(), split("val", {"a": per_class, "b": per_class}))
    assert said(result, "points") == (expected is not None)
    assert expected is None or said(result, expected)


def test_hold_out_is_announced() -> None:
    assert said(inspection(split()), "holds out 20% of each class")
    assert said(inspection(split(), val_fraction=0.0), "nothing is measured")
    assert not said(inspection(), "There is no validation")
    assert said(inspection(split(counts={"a": 9, "b": 1})), "1 class with one image cannot lend")
    assert not said(inspection(split(counts={"a": 9, "b": 2})), "cannot lend")


@pytest.mark.parametrize(("side", "size"), [(20, 32), (32, 32), (63, 32), (64, 64), (300, 224)])
def test_image_size(side: int, size: int) -> None:
    sizes = Sizes(Spread(side, 2 * side, 900), Spread(9, side, side), Spread(9, side, side), 5, {"RGB": 3})
    result = inspection(split(sizes=sizes), split("val"))
    assert said(result, f"`--data.image-size {size}` {'fits' if side >= 32 else 'is the smallest'}")
    assert not said(inspection(), "--data.image-size")


def test_batch_size() -> None:
    def words(samples: int, batch: int) -> list[str]:
        counts = {"a": samples // 2, "b": samples - samples // 2}
        return [s for s in advice(inspection(split(counts=counts), split("val"), batch_size=batch)) if "batch" in s]

    assert words(400, 128) == words(128, 128) == []
    assert "`--data.batch-size 32`" in words(127, 128)[0]
    assert "`--data.batch-size 128`" in words(400, 4)[0]
    assert "`--data.batch-size 8`" in words(16, 4)[0]
    assert said(inspection(split(counts={"a": 8, "b": 7}), split("val")), "too few to relate")
    # 150 images fill a batch of 128, but not once a fifth is held out
    assert words(150, 128) == []
    assert said(inspection(split(counts={"a": 75, "b": 75})), "do not fill a batch of 128")


def test_partial_look_is_admitted() -> None:
    assert said(inspection(split(checked=10), split("val")), "Only 410 of 800 images were read")
    assert not said(inspection(), "were read")


@pytest.mark.parametrize(
    ("number", "noun", "words"), [(1, "class", "1 class"), (2, "class", "2 classes"), (1200, "copy", "1,200 copies")]
)
def test_amount(number: int, noun: str, words: str) -> None:
    assert amount(number, noun) == words
