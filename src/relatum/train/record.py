"""The run directory: config, manifest, metrics, checkpoints, scores."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from relatum import __version__
from relatum.config_files import differences
from relatum.errors import CheckpointError, ConfigError
from relatum.train.checkpoint import INDEX, write_atomically

_VERSIONS = ("torch", "torchvision", "timm", "numpy", "pillow", "safetensors")
# Settings that may change between two commands on one run directory: what has been trained stays valid.
_FREE = (
    "out",
    "allow_changes",
    "stages",
    "train.device",
    "train.threads",
    "train.tensorboard",
    "train.max_steps",
    "data.workers",
)


class RunDirectory:
    """Files of one run. Opening it again with the same settings continues it; with others it refuses.

    A run that ended before its first checkpoint has nothing to continue, so its settings may still be corrected.

    Args:
        path: the directory; made if it is not there.
        config: all settings as nested plain values, kept in config.json and compared on reopening.
        config_text: the same settings as TOML for people; empty writes none.
    """

    def __init__(self, path: Path | str, config: Mapping[str, Any], config_text: str = "") -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.metrics_file = self.path / "metrics.jsonl"
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"cannot write to {self.path}: {error.strerror}. Choose another --out.") from error
        self.manifest: dict[str, Any] = self._read("manifest.json") or {}
        if (self.checkpoints / INDEX).exists() or self.manifest.get("status") == "finished":
            self._check_same(config)
        else:
            self.manifest = {}
        self._write("config.json", config)
        if config_text:
            write_atomically(self.path / "config.toml", config_text.encode())

    def _check_same(self, config: Mapping[str, Any]) -> None:
        before = self._read("config.json") or {}
        now = json.loads(json.dumps(config))  # as it will be read back: tuples are lists there
        changed = {k: v for k, v in differences(before, now).items() if k not in _FREE}
        if changed:
            words = "; ".join(f"{key} was {old!r}, now {new!r}" for key, (old, new) in changed.items())
            raise ConfigError(
                f"{self.path} holds a run with other settings ({words}). "
                "Give another --out, or delete that directory to start anew."
            )

    def update_manifest(self, **entries: Any) -> None:
        """Add entries to manifest.json."""
        self.manifest |= entries
        self._write("manifest.json", self.manifest)

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        try:
            with self.metrics_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise CheckpointError(f"cannot write {self.metrics_file}: {error.strerror}. Check space.") from error

    def keep_metrics(self, rows: int) -> None:
        """Keep the first `rows` lines: those after the checkpoint we resume from will be written again."""
        if not self.metrics_file.exists():
            return
        lines = self.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines()[:rows]
        write_atomically(self.metrics_file, "".join(line + "\n" for line in lines if _is_json(line)).encode())

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
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
        return path

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        if not path.exists():
            return None
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return content
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}); give another --out.") from error


def _is_json(line: str) -> bool:
    """False for a line that a crash left half-written."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


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
