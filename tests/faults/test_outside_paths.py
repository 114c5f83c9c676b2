"""Paths in lists and tables stay inside the image root, unless they are allowed to leave."""
# ruff: noqa: PTH100, PTH118 (the paths are odd on purpose; Path would tidy them)

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relatum.data.inside import require_inside, resolve_entries
from relatum.errors import DataError

OUTSIDE = [
    "/etc/passwd", "../secret.png", "a/../../secret.png", "a/b/../../../x", "/", "..", "//etc/passwd",
    "/pictures2/x.png", "./../x", "a/./../..//x", "/pictures/../etc/passwd",
]  # fmt: skip
INSIDE = [
    "a.png",
    "a/b.png",
    "./a.png",
    "a/../b.png",
    "..a.png",
    "a..b/c.png",
    "a/...",
    "/pictures/a.png",
    "/pictures/a/../b.png",
]


@pytest.mark.parametrize("entry", OUTSIDE)
def test_what_leads_out_is_refused_by_row_and_path_with_the_cure(entry):
    with pytest.raises(DataError) as caught:
        resolve_entries(["good.png", entry], "/pictures", "list.txt", rows=[4, 7])
    words = str(caught.value)
    assert words.startswith("list.txt, line 7:") and entry in words and "--data.allow-outside" in words
    assert resolve_entries([entry], "/pictures", "list.txt", allow_outside=True) == [os.path.join("/pictures", entry)]


@pytest.mark.parametrize("entry", INSIDE)
def test_what_stays_inside_is_joined_to_the_root(entry):
    assert resolve_entries([entry], "/pictures", "list.txt") == [os.path.join("/pictures", entry)]


@pytest.mark.parametrize("root", ["", ".", "images", "/", "images/"])
def test_every_way_to_write_the_root(root):
    assert resolve_entries(["a/b.png"], root, "t") == [os.path.join(root, "a/b.png")]
    if root != "/":
        with pytest.raises(DataError, match="leads out"):
            resolve_entries(["../b.png"], root, "t")


def test_the_real_name_of_a_root_behind_a_link_counts_as_inside(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for name in ("real", "link"):
        assert resolve_entries([f"{tmp_path}/{name}/x.png"], tmp_path / "link", "t")


@pytest.mark.parametrize("allow", [True, False])
def test_a_nul_is_no_path_even_where_all_is_allowed(allow):
    with pytest.raises(DataError, match=r"line 3.*NUL"):
        resolve_entries(["/x" if allow else "x", "y", "a\0b"], "/pictures", "t", allow_outside=allow)


_PARTS = st.lists(st.sampled_from(["a", "b", "..", ".", "", "root", "..c"]), min_size=1, max_size=8).map("/".join)


@given(entry=_PARTS, absolute=st.booleans())
@settings(max_examples=300, deadline=None)
def test_the_words_decide_as_the_common_path_does(entry, absolute):
    entry = f"/{entry}" if absolute else entry
    full = os.path.abspath(os.path.join("/pictures/images", entry))
    inside = full != "/pictures/images" and os.path.commonpath([full, "/pictures/images"]) == "/pictures/images"
    if inside or (entry[:1] != "/" and ".." not in entry):  # the root itself is noticed when opened
        assert resolve_entries([entry], "/pictures/images", "t")
    else:
        with pytest.raises(DataError):
            resolve_entries([entry], "/pictures/images", "t")


def test_links_are_judged_where_they_lead_when_they_are_opened(tmp_path):
    root, store = tmp_path / "root", tmp_path / "root-store"
    (root / "a").mkdir(parents=True)
    (store / "sub").mkdir(parents=True)
    for file in (root / "a" / "in.png", store / "out.png", store / "sub" / "deep.png"):
        file.write_bytes(b"x")
    (root / "file.png").symlink_to(store / "out.png")
    (root / "folder").symlink_to(store / "sub")
    (root / "chain.png").symlink_to("file.png")
    (root / "fine.png").symlink_to("a/in.png")
    (root / "loop.png").symlink_to("loop.png")
    for good in ("a/in.png", "fine.png", "a/../fine.png", "gone.png", "loop.png"):  # the last two: no image, but inside
        require_inside(str(root / good), root)
    for bad in ("file.png", "folder/deep.png", "chain.png", "folder/../out.png"):
        path = os.path.join(root, bad)
        assert Path(path).read_bytes() == b"x"  # the way out does exist
        with pytest.raises(DataError, match=r"root-store.*--data\.allow-outside"):
            require_inside(path, root)


def test_millions_of_entries_are_looked_at_without_touching_the_disk(monkeypatch):
    def touched(*_: object, **__: object) -> None:
        raise AssertionError("the disk was asked")

    for name in ("stat", "lstat", "readlink", "scandir", "open"):
        monkeypatch.setattr(os, name, touched)
    entries = [f"class{i % 100}/image{i}.jpg" for i in range(200_000)]
    assert resolve_entries(entries, "/pictures", "t")[-1] == f"/pictures/{entries[-1]}"
