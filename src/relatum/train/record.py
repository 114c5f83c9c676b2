"""The run directory: config, manifest, metrics, checkpoints, scores."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from relatum import __version__
from relatum.data.loaders import Loaders
from relatum.errors import CheckpointError
from relatum.files import append_line, sweep_up, write_if_new
from relatum.processes import is_first, world
from relatum.train.changes import Changes, changed_settings, on_record, refuse_data, refuse_settings, settings_in_words
from relatum.train.checkpoint import has_checkpoints, newest_step
from relatum.train.fingerprint import data_changes, data_in_words, fingerprint
from relatum.train.lock import RunLock

_VERSIONS = ("torch", "torchvision", "timm", "numpy", "pillow", "safetensors")


class RunDirectory:
    """Files of one run. Opening it again with the same settings continues it; with others it refuses.

    A run that ended before its first checkpoint has nothing to continue, so its settings may still be corrected.
    One process at a time: the directory is locked until `close` or the end of this object.

    Args:
        path: the directory; made if it is not there.
        config: all settings as nested plain values, kept in config.json and compared on reopening.
        config_text: the same settings as TOML for people; empty writes none.
        allow_changes: continue although settings or data have changed, and put on record what has.
    """

    def __init__(
        self, path: Path | str, config: Mapping[str, Any], config_text: str = "", *, allow_changes: bool = False
    ) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.metrics_file = self.path / "metrics.jsonl"
        self.allow_changes = allow_changes
        self._checked: Loaders | None = None
        self._lock = RunLock(self.path)
        try:
            self._open(config, config_text)
        except BaseException:
            self.close()  # not when somebody forgets the traceback that holds us
            raise

    def _open(self, config: Mapping[str, Any], config_text: str) -> None:
        try:
            self.checkpoints.mkdir(exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"cannot write to {self.path}: {error.strerror}. Choose another --out.") from error
        sweep_up(self.path)
        self.manifest: dict[str, Any] = self._read("manifest.json") or {}
        if has_checkpoints(self.checkpoints) or self.manifest.get("status") == "finished":
            self._check_settings(config)
        else:
            self.manifest = {}
        self._write("config.json", config)
        if config_text:
            write_if_new(self.path / "config.toml", config_text.encode())

    def close(self) -> None:
        """Let other processes use the directory."""
        self._lock.close()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_settings(self, config: Mapping[str, Any]) -> None:
        processes = (self.manifest.get("processes", 1), world())
        changes = changed_settings(self._read("config.json") or {}, config, processes)
        if changes:
            words = settings_in_words(changes)
            if not self.allow_changes:
                refuse_settings(self.path, words)
            self._put_on_record(changes, words)

    def check_data(self, loaders: Loaders) -> None:
        """Compare the data with that of the run so far, and take note of it; earlier versions took none.

        Raises:
            ConfigError: they differ, and changes are not allowed.
        """
        if self._checked is loaders:
            return
        self._checked = loaders
        before, now = self.manifest.get("data"), fingerprint(loaders)
        if before == now or (before is None and self.manifest.get("status") == "finished"):
            return
        if before is not None:
            words = data_in_words(before, now)
            if not self.allow_changes:
                refuse_data(self.path, words)
            self._put_on_record(data_changes(before, now), words)
        self.update_manifest(data=now)

    def _put_on_record(self, changes: Changes, words: str) -> None:
        step = newest_step(self.checkpoints)
        self.update_manifest(changes=on_record(self.manifest.get("changes", []), step, changes))
        warnings.warn(f"{self.path} goes on after step {step} with changes ({words}).", stacklevel=4)

    def update_manifest(self, **entries: Any) -> None:
        """Add entries to manifest.json."""
        self.manifest |= entries
        self._write("manifest.json", self.manifest)

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl; it is on disk when this returns, for the next checkpoint counts on it."""
        try:
            append_line(self.metrics_file, json.dumps(row))
        except OSError as error:
            raise CheckpointError(f"cannot write {self.metrics_file}: {error.strerror}. Check space.") from error

    def keep_metrics(self, rows: int) -> int:
        """Keep the first `rows` lines: those after the checkpoint we resume from will be written again.

        Returns:
            How many are left: fewer where some were lost or damaged, which is said. Count on from there.
        """
        content = self.metrics_file.read_bytes() if self.metrics_file.exists() else b""
        lines = [line for line in content.split(b"\n")[:rows] if _is_row(line)]
        if len(lines) < rows:
            warnings.warn(
                f"{self.metrics_file} has lost {rows - len(lines)} of its first {rows} rows; curves will lack them, "
                "the training does not.",
                stacklevel=2,
            )
        if content:
            write_if_new(self.metrics_file, b"".join(line + b"\n" for line in lines))
        return len(lines)

    def write_scores(self, scores: Mapping[str, Any]) -> None:
        """Write scores.json."""
        self._write("scores.json", scores)

    def read_scores(self) -> dict[str, Any]:
        """Read scores.json; empty if there is none yet."""
        return self._read("scores.json") or {}

    def write_failure(self, details: Mapping[str, Any]) -> Path:
        """Write failure.json, the report of a stop before a bad step."""
        return self._write("failure.json", details)

    def _write(self, name: str, content: Mapping[str, Any]) -> Path:
        path = self.path / name
        write_if_new(path, (json.dumps(content, indent=1) + "\n").encode())
        return path

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        if not path.exists():
            return None
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}); give another --out.") from error


def open_run(
    path: Path, config: Mapping[str, Any], config_text: str = "", *, allow_changes: bool = False
) -> AbstractContextManager[RunDirectory | None]:
    """Open a run directory for a `with` block; of several processes the first has it, and the others get None."""
    return RunDirectory(path, config, config_text, allow_changes=allow_changes) if is_first() else nullcontext()


def _is_row(line: bytes) -> bool:
    """False for a line that a crash left half-written, or that is damaged."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def surroundings() -> dict[str, Any]:
    """What a result depends on besides its settings: versions, hardware, git state of the working directory."""
    return {
        "relatum": __version__,
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in _VERSIONS}},
        "hardware": {
            "machine": platform.machine(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "git": _git_state(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _git_state() -> dict[str, Any] | None:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None
