"""Predictions as table, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relatum.errors import ConfigError
from relatum.predictions import write_predictions

ROWS = [
    (Path("photos/a,b.jpg"), [('ox, "big"', 0.75), ("[bold]ant[/bold]", 0.25)]),
    (Path("photos/line\nbreak.jpg"), [("ant", 0.9), ("ox", 0.1)]),
]


def _written(rows, format):
    stream = io.StringIO(newline="")
    write_predictions(rows, format, stream)
    return stream.getvalue()


def test_csv_has_the_named_columns_and_survives_quotes_commas_and_line_breaks():
    text = _written(ROWS, "csv")
    table = list(csv.reader(io.StringIO(text, newline="")))
    assert table[0] == ["path", "class_1", "probability_1", "class_2", "probability_2"]
    assert table[1] == [str(ROWS[0][0]), 'ox, "big"', "0.75", "[bold]ant[/bold]", "0.25"]
    assert table[2] == [str(ROWS[1][0]), "ant", "0.9", "ox", "0.1"]
    assert "\r" not in text


def test_csv_goes_out_row_by_row():
    stream, seen = io.StringIO(), []

    def rows():
        for row in ROWS:
            seen.append(stream.getvalue())
            yield row

    write_predictions(rows(), "csv", stream)
    assert seen[0] == ""
    assert "a,b.jpg" in seen[1]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.tuples(st.text(), st.floats(0, 1, width=32)), min_size=2, max_size=2), max_size=4))
def test_json_can_be_read_back(predictions):
    found = json.loads(_written([(Path(f"{i}.jpg"), row) for i, row in enumerate(predictions)], "json"))
    assert [entry["path"] for entry in found] == [f"{i}.jpg" for i in range(len(predictions))]
    for entry, row in zip(found, predictions, strict=True):
        assert [part["class"] for part in entry["predictions"]] == [name for name, _ in row]
        values = [value for _, value in row]
        assert [part["probability"] for part in entry["predictions"]] == pytest.approx(values, rel=1e-5, abs=1e-44)


def test_probabilities_have_no_false_digits():
    third = 0.3333333432674408  # 1 / 3 in float32
    assert "0.333333," in _written([(Path("a"), [("x", third), ("y", third)])], "csv")
    assert "0.333333}" in _written([(Path("a"), [("x", third)])], "json")


def test_table_shows_names_literally_and_percent():
    text = _written(ROWS[:1], "table")
    assert "[bold]ant[/bold]" in text
    assert "75.0%" in text and "25.0%" in text
    assert "photos/a,b.jpg" in text


@pytest.mark.parametrize("format", ["table", "csv", "json"])
def test_no_rows_is_an_empty_document(format):
    text = _written([], format)
    assert text
    if format == "csv":
        assert text == "path,class_1,probability_1\n"
    if format == "json":
        assert json.loads(text) == []


@pytest.mark.parametrize("format", ["table", "csv", "json"])
def test_a_file_name_that_is_no_utf8_does_not_stop_the_output(format, tmp_path):
    path = Path(os.fsdecode(b"caf\xe9.jpg"))
    with (tmp_path / "out").open("w", encoding="utf-8") as stream:
        write_predictions([(path, [("cup", 1.0)])], format, stream)
    text = (tmp_path / "out").read_text(encoding="utf-8")
    assert "cup" in text and "\\udce9" in text


def test_unknown_format_names_the_nearest_and_reads_nothing():
    def rows():
        raise AssertionError("must not be read")
        yield

    with pytest.raises(ConfigError, match="did you mean 'json'"):
        write_predictions(rows(), "jsn", io.StringIO())  # type: ignore[arg-type]
