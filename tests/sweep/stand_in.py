"""Stands in for `relatum train` where only processes matter: ends well, fails, or waits, as tau tells."""

import json
import signal
import sys
import time
from pathlib import Path

words = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
out, tau = Path(words["out"]), float(words["objective.tau"])
print("words to the log", flush=True)
if tau < 0:
    print("a line\n\nthe reason, at last", file=sys.stderr)
    sys.exit(3)
if tau == 5:  # train until asked to stop

    def stop(*_):
        (out.parent / f"{out.name}-saved").touch()
        sys.exit(130)

    signal.signal(signal.SIGTERM, stop)
    (out.parent / f"{out.name}-begun").touch()
    time.sleep(120)
if tau in (7, 8):  # go on only when the other one runs too
    (out.parent / f"met-{tau:g}").touch()
    deadline = time.monotonic() + 60
    while not (out.parent / f"met-{15 - tau:g}").exists():
        if time.monotonic() > deadline:
            sys.exit("alone")
        time.sleep(0.02)
out.mkdir(parents=True, exist_ok=True)
(out / "config.json").write_text((out.parent / "expected" / f"{out.name}.json").read_text())
(out / "scores.json").write_text("{}")
(out / "manifest.json").write_text(json.dumps({"status": "finished"}))
