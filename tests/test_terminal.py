"""Progress of long work where nobody sees a bar."""

from __future__ import annotations

import pytest

from relatum import terminal


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""
    passed = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: passed[0])
    return passed


def test_a_log_gets_a_line_now_and_then_with_the_time_that_is_left(clock, capsys):
    with terminal.bar("features\x1b[31m") as show:
        for done in range(11):
            clock[0] = done * 12.0
            show(done, 20)
    out, err = capsys.readouterr()
    assert not out
    assert err.splitlines() == [
        f"{terminal.printable('features' + chr(27) + '[31m')}: {done} of 20, ETA {(20 - done) * 0.2:.1f} min"
        for done in (3, 6, 9)
    ]
    assert "\x1b" not in err


def test_short_work_stays_silent(clock, capsys):
    with terminal.bar("features") as show:
        for done in range(10):
            clock[0] = done * 3.0
            show(done, 10)
    assert capsys.readouterr() == ("", "")
