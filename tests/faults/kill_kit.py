"""Real processes that run the real command line and are signalled at a chosen place.

Run as a script this is a server: it imports torch once and forks a child for each command, because the import takes
longer than the training. A child patches functions of the operating system and of torch, nothing of ours: they count
what happens (events) and send a signal to their own process at the one that the trap names. Our task is wrapped to
write down the samples that it is given.

A trap is {"event": ..., "match": pattern of the path, "nth": 1, "signal": 9, "times": 1, "half": false}; half cuts the
file that is being written to half of its length first. The events:
fsync, replace, unlink (before), fsynced, replaced, unlinked (after), write (one of Path.write_text), backward, step,
stepped (an optimizer's, before and after), infer (a batch of an evaluation), image (a file is opened), popen (a process
is started); "any" counts them all.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"

# -- inside the child --------------------------------------------------------------------------------------------------


def is_place(line: str, trap: dict) -> bool:
    """Whether a line of a journal is what a trap waits for."""
    event, _, path = line.partition(" ")
    return trap["event"] in (event, "any") and re.search(trap.get("match", ""), path) is not None


class Trap:
    """Count events of one process, write each to a journal, and send the signal at the one that is meant."""

    def __init__(self, request: dict) -> None:
        self.trap, self.process, self.count = request.get("trap"), os.getpid(), 0
        self.journal = os.open(request["journal"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def reached(self, event: str, path: object = "", file: object = None) -> None:
        if os.getpid() != self.process:  # a loader process of ours
            return
        os.write(self.journal, f"{event} {path}\n".encode())
        trap = self.trap
        if trap is None or not is_place(f"{event} {path}", trap):
            return
        self.count += 1
        if self.count == trap.get("nth", 1):
            if trap.get("half"):
                os.truncate(file, os.stat(file).st_size // 2)  # noqa: PTH116 (or a descriptor)
            os.write(self.journal, f"signalled {trap.get('signal', 9)}\n".encode())
            for _ in range(trap.get("times", 1)):
                os.kill(self.process, trap.get("signal", signal.SIGKILL))


def install(request: dict) -> None:
    """Patch this process by the request."""
    import PIL.Image
    import torch

    trap = Trap(request)
    _patch_files(trap)
    _around(torch.Tensor, "backward", lambda *_: trap.reached("backward"))
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        _around(kind, "step", lambda *_: trap.reached("step"), lambda *_: trap.reached("stepped"))
    infer = lambda *_: trap.reached("infer") if torch.is_inference_mode_enabled() else None  # noqa: E731
    _around(torch.nn.Linear, "forward", infer)
    _around(PIL.Image, "open", lambda path, *_: trap.reached("image", path))
    _around(subprocess.Popen, "__init__", lambda _, words, *__: trap.reached("popen", words))
    _record_samples(request["order"])


def _patch_files(trap: Trap) -> None:
    def named(file: int) -> str:
        return str(Path(f"/proc/self/fd/{file}").readlink())

    _around(
        os, "fsync", lambda file: trap.reached("fsync", named(file), file), lambda f: trap.reached("fsynced", named(f))
    )
    _around(os, "replace", lambda a, b: trap.reached("replace", b, a), lambda a, b: trap.reached("replaced", b))
    _around(
        os, "unlink", lambda path, *_: trap.reached("unlink", path), lambda path, *_: trap.reached("unlinked", path)
    )
    real = Path.write_text

    def write_half_first(path: Path, text: str, *args: object, **kwargs: object) -> int:
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            trap.reached("write", path, file.fileno())
        return real(path, text, *args, **kwargs)

    Path.write_text = write_half_first


def _around(owner, name, before, after=None) -> None:
    real = getattr(owner, name)

    @functools.wraps(real)
    def patched(*args, **kwargs):
        before(*args)
        result = real(*args, **kwargs)
        if after is not None:
            after(*args)
        return result

    setattr(owner, name, patched)


def _record_samples(place: str) -> None:
    from torch import nn

    from relatum.train.related import RelatedTask

    file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def call(task, batch):
        content = hashlib.sha256(batch.inputs.numpy().tobytes() + batch.targets.numpy().tobytes()).hexdigest()
        os.write(file, (json.dumps([batch.index.tolist(), content]) + "\n").encode())
        return nn.Module.__call__(task, batch)

    RelatedTask.__call__ = call


def run_child(request: dict) -> int:
    """Become the process of one command."""
    os.setpgid(0, 0)
    os.chdir(request["cwd"])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN if request["nohup"] else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for place, name in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o644), place)
    install(request)
    sys.argv = ["relatum", *request["words"]]
    from relatum.cli import main

    code = main(request["words"])
    sys.stdout.flush(), sys.stderr.flush()
    return code


def serve() -> None:
    """Fork a child for each line of standard input; a line with a process id waits for that child."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(1)
    import relatum.recipes.stages
    import relatum.report
    import relatum.sweep.verb
    import relatum.verbs  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, int):
            answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(request, 0)[1])}\n")
            continue
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                code = run_child(request)
            finally:
                os._exit(code)
        answers.write(f"{pid}\n")


# -- inside the tests --------------------------------------------------------------------------------------------------


def placed(trap: dict, whole: Child) -> dict:
    """Return the trap with a number for "last": as often as it happens in a run that nobody touches."""
    if trap.get("nth") != "last":
        return trap
    return {**trap, "nth": sum(is_place(line, trap) for line in whole.events)}


class Child:
    """One process of the server."""

    def __init__(self, kit: Kit, request: dict) -> None:
        self.kit, self.request = kit, request
        self.pid = kit.ask(request)

    def wait(self) -> int:
        """Return the exit code; a signal is negative."""
        return self.kit.ask(self.pid)

    def text(self, name: str) -> str:
        """What it wrote: out, err, order, journal."""
        path = Path(self.request[name])
        return path.read_text() if path.exists() else ""

    @property
    def samples(self) -> list[str]:
        return self.text("order").splitlines()

    @property
    def begun_at(self) -> int:
        """The step after which it went on; 0 if it began anew."""
        found = re.search(r"Continuing .* after step (\d+)\.", self.text("err"))
        return int(found[1]) if found else 0

    @property
    def events(self) -> list[str]:
        return self.text("journal").splitlines()

    @property
    def last_event(self) -> str:
        """What it had reached when the signal came."""
        lines = self.events
        return lines[max(i for i, line in enumerate(lines) if line.startswith("signalled ")) - 1]


class Kit:
    """The server, seen from the tests."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kill-kit-"))
        self.numbers = itertools.count()
        self.server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )
        atexit.register(self.close)

    def ask(self, question: object) -> int:
        self.server.stdin.write(json.dumps(question) + "\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline()
        assert answer, "the server of the children has died"
        return int(answer)

    def start(self, words: list, cwd: Path, trap: dict | None = None, *, nohup: bool = False) -> Child:
        number = next(self.numbers)
        files = {name: str(self.folder / f"{number}.{name}") for name in ("out", "err", "order", "journal")}
        request = {"words": [str(word) for word in words], "cwd": str(cwd), "trap": trap, "nohup": nohup}
        return Child(self, {**request, **files})

    def run(self, words: list, cwd: Path, trap: dict | None = None) -> tuple[int, Child]:
        child = self.start(words, cwd, trap)
        return child.wait(), child

    def close(self) -> None:
        self.server.stdin.close()
        self.server.wait()
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()


@functools.cache
def kit() -> Kit:
    """The one server of a test session."""
    return Kit()


def environment() -> dict[str, str]:
    """One thread, no network, and the sources of this checkout."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "200",
        "PYTHONPATH": os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


if __name__ == "__main__":
    serve()
