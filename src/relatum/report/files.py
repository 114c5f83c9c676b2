"""Read the files of a run directory; what a crash left half-written is named or skipped."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from relatum.errors import CheckpointError


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`, empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = _parse(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(
            f"cannot read {path} ({error}); rerun the training command, which writes it anew."
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object; rerun the training command, which writes it anew.")
    return value


def _parse(text: str) -> Any:
    """Parse JSON; halves of surrogate pairs, which no page or figure can show, become question marks."""
    value = json.loads(text)
    if "\\ud" in text.lower():
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def read_settings(path: Path) -> dict[str, Any]:
    """Settings of a recipe (config.toml), or those that `fit` wrote on its own (config.json)."""
    return _config(path / "config.toml") or read_object(path / "config.json")


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path} ({error}); mend that line or rerun the training command.") from error


def read_metrics(path: Path) -> tuple[tuple[dict[str, Any], ...], int]:
    """Rows by step, and how many lines were unreadable: a killed run leaves half a line, a resume appends after it."""
    if not path.is_file():
        return (), 0
    rows: dict[tuple[Any, Any, Any], dict[str, Any]] = {}
    skipped = 0
    for line in path.read_bytes().splitlines():
        if not line.strip():
            continue
        try:
            row = _parse(line.decode("utf-8"))
            rows[(row.get("kind"), row.get("split"), row.get("step"))] = row
        except (ValueError, AttributeError, TypeError, RecursionError):
            skipped += 1
    return tuple(sorted(rows.values(), key=lambda row: (row.get("epoch") or 0, row.get("step") or 0))), skipped
