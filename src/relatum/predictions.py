"""Write predictions for a person (table), a spreadsheet (CSV) or a program (JSON)."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Literal, TextIO

from relatum.errors import ConfigError, RelatumError, printable, suggest

Prediction = tuple[Path, list[tuple[str, float]]]
PredictionFormat = Literal["table", "csv", "json"]


def write_predictions(rows: Iterable[Prediction], format: PredictionFormat, stream: TextIO) -> None:
    """Write predictions to `stream`; CSV and JSON go out row by row, so that a large folder needs no memory.

    Args:
        rows: (path, [(class name, probability), ...]) of each image, likeliest class first.
        format: "table"; "csv" with the columns path, class_1, probability_1, class_2, …; or "json", a list of
            {"path": …, "predictions": [{"class": …, "probability": …}, …]}.
        stream: text stream; a file should be opened with `encoding="utf-8"`.

    Raises:
        ConfigError: unknown format; nothing is read or written then.
    """
    if format not in _WRITERS:
        raise ConfigError(f"unknown prediction format '{format}'; {suggest(format, _WRITERS)}")
    _WRITERS[format](iter(rows), stream)


def save_predictions(rows: Iterable[Prediction], format: PredictionFormat, path: Path) -> None:
    """Write predictions to the file `path`, whole or not at all: an image that cannot be read leaves no part of it."""
    # A pipe or a device cannot be replaced by a finished file; it is written to directly.
    direct = path.exists() and not path.is_file()
    target = path if direct else path.with_name(f".{path.name}.part")
    try:
        with target.open("w", encoding="utf-8", newline="") as stream:
            write_predictions(rows, format, stream)
        if not direct:
            target.replace(path)
    except OSError as error:
        raise RelatumError(f"cannot write {path}: {error.strerror}. Choose another file with --out.") from error
    finally:
        if not direct:
            with contextlib.suppress(OSError):
                target.unlink(missing_ok=True)


def _write_table(rows: Iterator[Prediction], stream: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    listed = list(rows)
    table = Table()
    table.add_column("image", overflow="fold")
    for rank in range(1, _width(listed[:1]) + 1):
        table.add_column("class" if rank == 1 else f"class {rank}", overflow="fold")
        table.add_column("probability" if rank == 1 else "", justify="right", no_wrap=True)
    for path, predictions in listed:
        cells = chain.from_iterable((name, f"{probability:.1%}") for name, probability in predictions)
        # Text, because a class or a file may be called "[bold]", which rich would take for an instruction.
        table.add_row(*(Text(printable(cell)) for cell in (_printable(path), *cells)))
    Console(file=stream).print(table)


def _write_csv(rows: Iterator[Prediction], stream: TextIO) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    first = list(islice(rows, 1))  # the header needs its width
    ranks = range(1, _width(first) + 1)
    writer.writerow(["path", *chain.from_iterable((f"class_{rank}", f"probability_{rank}") for rank in ranks)])
    for path, predictions in chain(first, rows):
        cells = chain.from_iterable((name, _rounded(probability)) for name, probability in predictions)
        writer.writerow([_printable(path), *cells])


def _write_json(rows: Iterator[Prediction], stream: TextIO) -> None:
    stream.write("[")
    before = "\n"
    for path, predictions in rows:
        listed = [{"class": name, "probability": _rounded(probability)} for name, probability in predictions]
        stream.write(f"{before}{json.dumps({'path': str(path), 'predictions': listed})}")
        before = ",\n"
    stream.write("\n]\n")


_WRITERS: dict[str, Callable[[Iterator[Prediction], TextIO], None]] = {
    "table": _write_table,
    "csv": _write_csv,
    "json": _write_json,
}


def _width(first: list[Prediction]) -> int:
    return len(first[0][1]) if first else 1


def _rounded(probability: float) -> float:
    # float32 carries no more digits than these; the rest would be noise.
    return float(f"{probability:.6g}")


def _printable(path: Path) -> str:
    # A file name need not be valid UTF-8; its odd bytes are shown as escapes instead of stopping the output.
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")
