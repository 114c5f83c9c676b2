"""The terminal view stays short whatever the data; the plot works from two classes to thousands."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from relatum.config import DataConfig
from relatum.data.inspect import Inspection, SplitInspection
from relatum.data.inspect_files import Duplicate, ImageNote, Sizes, Spread
from relatum.data.inspect_view import plot_counts, render
from relatum.errors import RelatumError


def inspection(counts: dict[str, int], notes: tuple[ImageNote, ...] = (), duplicates=()) -> Inspection:
    side = Spread(20, 64.0, 640)
    sizes = Sizes(side, side, side, 3, {"RGB": 5, "L": 2})
    total = sum(counts.values())
    train = SplitInspection("train", counts, total, (), (), notes, sizes, notes, notes)
    val = SplitInspection(
        "val", dict.fromkeys(counts, 3), 3, tuple(counts)[:7], tuple(counts)[7:14], notes, None, (), ()
    )
    splits = (train, val) if notes else (train,)
    return Inspection("photos [red] $5", "--data.root photos", splits, tuple(duplicates), DataConfig(batch_size=4))


def printed(result: Inspection, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    render(result, console)
    return console.export_text()


def long_tail(classes: int) -> dict[str, int]:
    return {f"class {k}": int(1000 * 0.002 ** (k / max(classes - 1, 1))) for k in range(classes)}


def test_worst_case_of_thousands_of_classes_fits_the_screen() -> None:
    counts = {**long_tail(8000), "alone": 1}
    notes = tuple(ImageNote("train", "class 1", "deep/" * 40 + f"{i}.jpg", "broken") for i in range(300))
    pairs = [Duplicate((note, ImageNote("val", "class 2", "z"))) for note in notes]
    result = inspection(counts, notes, [*pairs, *(Duplicate((note, note)) for note in notes)])
    assert len(result.findings) == 9
    text = printed(result)
    assert len(text.splitlines()) <= 62
    assert max(map(len, text.splitlines())) <= 80
    assert text.index("600 images cannot be read") < text.index("many/medium/few") < text.index("Advice")
    assert "0.jpg: broken" in text  # the end of a long line survives, its middle is cut


def test_small_clean_data_shows_every_class_and_no_findings() -> None:
    text = printed(inspection({"cat": 120, "dog [bold]": 60}))
    assert "No problems found" in text
    assert "cat" in text and "dog [bold]" in text and "photos [red] $5" in text
    assert "median 64" in text and "5 RGB, 2 L" in text
    assert "error" not in text


def test_file_names_of_any_bytes_can_be_printed() -> None:
    note = ImageNote("train", "a", "bad\udcff\x1b[31m.jpg", "broken")
    assert r"bad\udcff\x1b[31m.jpg: broken" in printed(inspection({"a": 30, "b": 30}, (note,)))


@pytest.mark.parametrize(
    "counts", [{"a": 812, "b $x$": 17}, long_tail(12), long_tail(150), long_tail(8000), {"a": 0, "b": 0}]
)
@pytest.mark.filterwarnings("error")
def test_plot_is_a_png_with_the_group_colours(tmp_path: Path, counts: dict[str, int]) -> None:
    out = plot_counts(inspection(counts), tmp_path / "new" / "counts.png")
    with Image.open(out) as image:
        assert image.format == "PNG"
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    blue, amber, red = (0x3B, 0x6F, 0xB6), (0xE0, 0xA0, 0x2B), (0xC8, 0x44, 0x3C)
    assert (blue in colours) == any(n > 100 for n in counts.values())
    assert (amber in colours) == any(20 <= n <= 100 for n in counts.values())
    assert (red in colours) == any(n < 20 for n in counts.values())


def test_unwritable_plot_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RelatumError, match="cannot write the plot"):
        plot_counts(inspection({"a": 3, "b": 4}), tmp_path / "file" / "counts.png")
