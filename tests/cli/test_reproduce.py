from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
import typer
from rich.console import Console

from calligram.cli import evaluate, screen
from calligram.cli.screen import RowTable, row_table
from calligram.studies import reproduce as work
from calligram.studies.claims import Row
from calligram.studies.results import Result
from calligram.studies.row_pool import RowState
from calligram.studies.rows import RowJob


def rows() -> list[RowState]:
    found = [
        RowState(RowJob("paper", Row(name, "vse"), 0, "c", Path("results"), Path("runs")))
        for name in ("new", "old", "broken", "last")
    ]
    found[0].start()
    found[0].doing, found[0].dev, found[0].left = "epoch 3/10", [10.0, 20.0, 15.0], 75.0
    found[0].began = time.monotonic() - 30
    found[1].end()
    found[1].seconds = 65.0
    found[2].end("no [such] file")
    return found


def printed(height: int) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(row_table(rows(), height))
    return console.file.getvalue()


def test_the_table_shows_failed_and_running_rows_first():
    lines = [line.split() for line in printed(10).splitlines()]
    assert [line[0] for line in lines[2:]] == ["broken", "new", "last", "old"]
    assert "1 failed, 1 running, 1 waiting, 1 done" in printed(10)
    assert lines[3][1:-3] == ["0", "epoch", "3/10", "15.0", "▁█▅"]
    assert lines[3][-1] == "1:15"
    # 75 s for the running row; then (65 + 105) / 2 s for the one that waits.
    assert "about 2:40 left" in printed(10)
    assert "and 2 further rows" in printed(2)


def test_elsewhere_a_row_is_a_line_when_it_starts(capsys):
    with RowTable() as table:
        states = rows()
        table.show(states)
        table.show(states)
    assert capsys.readouterr().err == "paper: new, seed 0: epoch 3/10, dev 15.0, 1:15 left\n"
    assert [row.job.row.name for row in table.failed] == ["broken"]


def test_on_a_terminal_the_table_is_live(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    monkeypatch.setattr(screen, "errors", screen.PlainConsole(file=stream, force_terminal=True, width=100, height=30))
    monkeypatch.setattr(screen, "console", screen.PlainConsole(file=stream, force_terminal=True, width=100))
    with RowTable() as table:
        table.show(rows())
        table.print("paper: old, seed 0: [done]")
    text = stream.getvalue()
    assert "epoch 3/10" in text
    assert "paper: old, seed 0: [done]\n" in text
    before = text[: text.index("paper: old")]
    assert before.endswith(("\x1b[2K", "\r\x1b[2K"))  # the table is erased, and drawn again below the line


def test_a_row_that_failed_is_reported_and_the_status_is_1(tiny, tmp_path, monkeypatch, capsys):
    def reproduce_study(*_, watch, **options):
        assert options["workers"] == 3
        assert options["only"] == ("hard*", "sum")
        watch(rows())
        return []

    monkeypatch.setattr(work, "reproduce_study", reproduce_study)
    given = {"set_": None, "only": ["hard*", "sum"], "workers": 3, "results": tmp_path, "runs": tmp_path}
    with pytest.raises(typer.Exit) as stopped:
        evaluate.reproduce("vse++", tiny.folder, None, 3, **given, device="cpu")
    assert stopped.value.exit_code == 1
    shown = capsys.readouterr().err
    assert "failed: paper: broken, seed 0; log: runs/logs/paper-broken-c-0.log\n" in shown
    assert "no [such] file" not in shown  # printed when the row ended


def test_an_interrupt_says_how_to_continue(tiny, tmp_path, monkeypatch, capsys):
    def reproduce_study(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "reproduce_study", reproduce_study)
    given = {"set_": None, "only": None, "workers": None, "results": tmp_path, "runs": tmp_path}
    with pytest.raises(typer.Exit) as stopped:
        evaluate.reproduce("vse++", tiny.folder, None, 3, **given, device="cpu")
    assert stopped.value.exit_code == 130
    assert "the same command continues" in capsys.readouterr().out


def test_a_result_is_one_line():
    row = rows()[1]
    row.result = Result("vse", {}, 0, "c", "test", {}, {}, 123.45, 1.0, "cpu", "c", "x")
    assert rows()[2].outcome == "paper: broken, seed 0: failed: no [such] file"
    assert row.outcome == "paper: old, seed 0: rsum 123.5 on test, 65 s"
