"""One batch ahead: the same batches, made while the one before is used; errors in their place; no thread left over."""

from __future__ import annotations

import threading

import pytest

from relatum.data.ahead import one_ahead


def next_batch_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("next-batch")]


def test_every_item_comes_once_and_in_order():
    assert list(one_ahead(iter(range(5)))) == [0, 1, 2, 3, 4]
    assert list(one_ahead(iter([None, 0]))) == [None, 0]
    assert list(one_ahead(iter([]))) == []


def test_the_next_item_is_made_while_this_one_is_used():
    begun = [threading.Event() for _ in range(3)]

    def items():
        for event in begun:
            event.set()
            yield threading.current_thread().name

    ahead = one_ahead(items())
    assert next(ahead).startswith("next-batch")
    assert begun[1].wait(10), "nobody makes the second item while the first is used"
    assert not begun[2].is_set(), "one ahead, not two: each item in the making takes memory"
    ahead.close()


def test_an_error_comes_in_its_place():
    def items():
        yield 1
        yield 2
        raise ValueError("a bad third")

    ahead = one_ahead(items())
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(ValueError, match="a bad third"):
        next(ahead)
    assert not next_batch_threads()


def test_whoever_stops_early_leaves_no_thread_behind():
    ahead = one_ahead(iter(range(100)))
    assert next(ahead) == 0 and len(next_batch_threads()) == 1
    ahead.close()
    assert not next_batch_threads()
