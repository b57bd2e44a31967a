"""The spinner and the progress bar: shown on terminals only, and removed before anything is printed."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from rich.text import Text

from calligram.cli.screen import PlainConsole, progress_bar, show_spinner

SCRIPT = """
import logging, sys, time
from calligram.cli import main, screen
logging.basicConfig(format="%(message)s", handlers=[main.LogHandler()])
try:
    with screen.show_spinner("loading") as spinner:
        time.sleep(0.15)
        spinner.update("[measuring]")
        logging.warning("a line of [a log]")
        for _ in screen.progress_bar(range(3), "counting"):
            time.sleep(0.15)
        for _ in screen.progress_bar([], "bar of nothing"):
            pass
        spinner.update("at the end")
        print("for a pipe")
        raise KeyError("no such thing")
except KeyError as error:
    print(error, file=sys.stderr)
"""


def test_a_terminal_shows_messages_and_bars_in_turn_and_stdout_stays_clean(on_terminal):
    printed, shown = on_terminal(SCRIPT)
    assert printed == "for a pipe\n"
    order = [shown.index(word) for word in ("loading", "[measuring]", "counting", "at the end", "no such thing")]
    assert order == sorted(order)
    assert "[measuring]" in shown[shown.rindex("counting") :], "it comes back when a bar is done"
    assert "bar of nothing" not in shown
    # The log's line is whole, and nothing is drawn after the spinner was taken away.
    assert "\x1b[2Ka line of [a log]\r\n" in shown
    assert shown.endswith("\x1b[?25h\r\x1b[1A\x1b[2K'no such thing'\r\n")


def test_a_dumb_terminal_shows_no_spinner(on_terminal):
    printed, shown = on_terminal(SCRIPT, TERM="dumb")
    assert printed == "for a pipe\n"
    assert "loading" not in shown
    assert "at the end" not in shown


@pytest.mark.parametrize("colour", ["", "1"])
def test_a_file_that_is_not_a_terminal_gets_nothing(colour):
    done = subprocess.run(
        [sys.executable, "-c", "from calligram.cli.screen import show_spinner\nwith show_spinner('loading'): pass"],
        capture_output=True,
        text=True,
        env={**os.environ, "FORCE_COLOR": colour, "TERM": "xterm"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_progress_bar_yields_every_item_with_and_without_a_spinner():
    assert list(progress_bar(iter("abc"), "letters")) == ["a", "b", "c"]
    with show_spinner("loading"):
        left = progress_bar(range(3), "numbers")
        assert next(left) == 0
    left.close()
    assert list(progress_bar([], "nothing")) == []


@pytest.mark.parametrize("terminal", [False, True])
def test_lines_are_whole_in_a_file_and_wrapped_at_words_on_a_terminal(terminal):
    console = PlainConsole(file=io.StringIO(), width=40, force_terminal=terminal)
    line = "the matcher is in /a/folder/with a name/that is longer than a line"
    console.print(line)
    console.print(Text(line))
    assert console.file.getvalue().count("\n") == (4 if terminal else 2)
