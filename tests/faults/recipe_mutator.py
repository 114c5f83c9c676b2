"""A seeded mutator of recipe files: what a slip of the hand, a bad copy or an ill-meant author might make of them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

VALUES = (
    *("0", "-1", "1", "1e999", "-1e-320", "inf", "-inf", "nan", "9" * 400, "9" * 5000, "0x" + "f" * 6000, "1_000"),
    *("true", "false", '""', '"' + "a" * 3000 + '"', '"\\u0000"', '"\\u001b[31m"', '"\\ud800"', '"<script>"', "''"),
    *("[]", "[[]]", "[" * 300 + "]" * 300, "[" * 20000, "{}", "{a = 1}", "{a = {b = [1, {c = 2}]}}", "[1, 'a', nan]"),
    *("1979-05-27", "07:32:00", '"os.system"', "\"__import__('os')\"", '"hf-hub:a/b"', '"local-dir:/"', '"file:///x"'),
    *('"/etc/passwd"', '"../../../../etc/passwd"', '"~"', '"$HOME"', '"{{7*7}}"', '"%s%n"', '"((((a+)+)+)+)$"', "'\\'"),
    "{" + "a." * 30000 + "a = 1}",
)
NAMES = (
    *("epochs", "train.epochs.x", "__class__", "__init__", "out", "data", "extends", "név", "'a b'", '""'),
    *("_target_", "_component_", "import", "eval", "data.data", "relation.at", "Train", "EPOCHS", "\x1b[31m"),
    *("a." * 300 + "a", "a." * 30000 + "a"),
)
PARENTS = (
    *("/dev/zero", "/dev/stdin", "/dev/full", "/proc/kmsg", "/proc/self/environ", "/etc/passwd", "/", ".", "..", ""),
    *("self.toml", "circle.toml", "pipe.toml", "folder.toml", "large.toml", "gone.toml", "binary.toml", "\\u0000"),
    *("../" * 40 + "etc/passwd", "http://example.org/x.toml", "file:///etc/passwd", "~/x.toml", "deep.toml"),
    *("link.toml", "a" * 5000 + ".toml"),
)
BLOCKS = (
    *("[[train]]\n", "[train.epochs]\nx = 1\n", "[data]\n[data]\n", "[a.b.c]\nd = 1\n", "[", "= 1\n"),
    "[" + "a." * 2000 + "a]\n",
)


def _lines(change: Callable[[random.Random, list[str]], None]) -> Callable[[random.Random, bytes], bytes]:
    def mutate(rng: random.Random, content: bytes) -> bytes:
        lines = content.decode("utf-8", "replace").split("\n")
        change(rng, lines)
        return "\n".join(lines).encode("utf-8", "replace")

    return mutate


def flip_bytes(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def cut(rng: random.Random, content: bytes) -> bytes:
    start = rng.randrange(len(content))
    return content[:start] + content[start + rng.randint(1, 80) :]


def insert_unicode(rng: random.Random, content: bytes) -> bytes:
    at = rng.randrange(len(content))
    text = "".join(chr(rng.choice((rng.randrange(1, 0x500), rng.randrange(0xE000, 0x11000)))) for _ in range(3))
    return content[:at] + text.encode() + content[at:]


@_lines
def delete_line(rng: random.Random, lines: list[str]) -> None:
    del lines[rng.randrange(len(lines))]


@_lines
def swap_lines(rng: random.Random, lines: list[str]) -> None:
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]


@_lines
def double_line(rng: random.Random, lines: list[str]) -> None:
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))


@_lines
def change_value(rng: random.Random, lines: list[str]) -> None:
    at = [i for i, line in enumerate(lines) if re.match(r"\w+ *=", line)]
    if at:
        i = rng.choice(at)
        lines[i] = f"{lines[i].partition('=')[0]}= {rng.choice(VALUES)}"


@_lines
def rename_key(rng: random.Random, lines: list[str]) -> None:
    at = [i for i, line in enumerate(lines) if "=" in line]
    if at:
        i = rng.choice(at)
        lines[i] = f"{rng.choice(NAMES)} ={lines[i].partition('=')[2]}"


@_lines
def change_parent(rng: random.Random, lines: list[str]) -> None:
    lines[:] = [line for line in lines if not line.startswith("extends")]
    lines.insert(0, f'extends = "{rng.choice(PARENTS)}"')


@_lines
def add_block(rng: random.Random, lines: list[str]) -> None:
    lines.insert(rng.randrange(len(lines)), rng.choice(BLOCKS))


CHANGES = (
    flip_bytes, cut, insert_unicode, delete_line, swap_lines, double_line,
    change_value, change_value, rename_key, change_parent, add_block,
)  # fmt: skip


def mutate(rng: random.Random, content: bytes) -> bytes:
    """Return `content` after one to three changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(CHANGES)(rng, content or b"\n")
    return content


def random_words(rng: random.Random, options: list[str]) -> list[str]:
    """Return a few words of a command line: options, some misspelt, and values of all sorts."""
    words: list[str] = []
    plain = ("3", "0.5", "1", "1e-3", "none", "+1", "1_0", "٣", " 2")  # so that many get past the first look
    for _ in range(rng.choice((1, 1, 2, 4))):
        name = rng.choice(options)
        if rng.random() < 0.15:
            at = rng.randrange(len(name))
            name = name[:at] + chr(rng.randrange(33, 0x250)) + name[at + 1 :]
        odd = rng.choice((*VALUES, "3", "0.5", "none", "--", "-", "-h5", "--train.epochs", "")).strip("\"'")
        value = rng.choice((odd, rng.choice(plain)))
        words += [[name, value], [f"{name}={value}"], [name], [name, value, value]][rng.choice((0, 0, 0, 1, 2, 3))]
    return words
