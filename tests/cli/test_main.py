"""The command as a user runs it: real files, what is printed, and a real process where that is what matters."""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import typer
from rich.console import Console

from calligram import __version__
from calligram.cli.main import VERBS, app, fast_imports
from calligram.cli.train import list_

COMMAND = [sys.executable, "-m", "calligram"]
PLAIN = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "unknown command 'trian'; did you mean 'train'?"),
        (["train", "vsee", "{tiny}", "--out", "x"], "unknown preset 'vsee'; did you mean 'vse'?"),
        (
            ["train", "vse", "{tiny}", "--out", "x", "--set", "epoch=2"],
            "unknown setting 'epoch'; did you mean 'epochs'?",
        ),
        (["train", "vse", "nowhere", "--out", "x"], "nowhere is not a collection"),
        (["train", "vse", "{tiny}", "--out", "x", "--device", "gpu"], "unknown device 'gpu'; known: auto, cpu, cuda"),
        (["evaluate", "nowhere", "{tiny}"], "nowhere is not a run"),
        (["evaluate", "{tiny}", "{run}"], 'but a collection; make one with "calligram train vse {tiny} --out RUN"'),
        (["search", "{run}", "a dog"], 'but a run; make one with "calligram index {run} PICTURES --out LIBRARY"'),
        (["search", "{tiny}", "a dog"], 'but a collection; make one with "calligram index RUN {tiny} --out LIBRARY"'),
        (["index", "{tiny}", "{run}"], 'is a run; the run comes first: "calligram index {run} {tiny}"'),
        (["train", "vse", "{tiny}/..", "--out", "x"], 'make one with "calligram import folder {tiny}/.. COLLECTION"'),
        (["search", "{tiny}/..", "a dog"], 'make one with "calligram index {tiny}/..", if these are your pictures'),
        (["evaluate", "{run}", "{tiny}", "--split", "tset"], "unknown split 'tset'; did you mean 'test'?"),
        (["evaluate", "{run}", "{tiny}", "--folds", "4"], "6 images cannot be divided into 4 equal folds"),
        (["evaluate", "{run}", "{tiny}", "--folds", "2", "--within"], "--within is measured over the whole split"),
        (["evaluate", "{run}", "{tiny}", "--sheet", "s.xyz"], "must end in .png"),
        (["evaluate", "{run}", "{tiny}", "--record", "."], "is a folder; give a file"),
        (
            ["evaluate", "{run}", "{tiny}", "--first", "{run}"],
            "--first needs the number of candidates; give it with --depth",
        ),
        (["evaluate", "{run}", "{tiny}", "--depth", "5"], "leave out --depth, or give with --first a run"),
        (
            ["evaluate", "{run}", "{tiny}", "--depth", "5", "--unknown"],
            "need the scores of all pairs; leave out --depth",
        ),
        (
            ["evaluate", "{run}", "{tiny}", "--precision", "bf16"],
            "--precision bf16 is for matchers that score",
        ),
        (["train", "vse", "{tiny}", "--out", "/proc/nowhere/x", "--set", "epochs=1"], "/proc/nowhere"),
        (["import", "flikr8k", "x", "y"], "unknown format 'flikr8k'; did you mean 'flickr8k'?"),
        (["reproduce", "aoq", "{tiny}", "--budget-minutes", "-1"], "Invalid value for '--budget-minutes'"),
        (["train", "vse", "{tiny}", "--out", "x", "--set", "image.backbone=/nope"], "loaded (there is no such folder)"),
        (["reproduce", "vse", "{tiny}"], "there is no study of paper 'vse'"),
        (["report", "--results", "nowhere"], "nowhere is not a folder of results"),
        (["show", "vsee"], "unknown preset 'vsee'; did you mean 'vse'?"),
        (
            ["show", "vse", "--set", "scan.direction=i2t"],
            "scan.direction is for matcher=scan, and this run has matcher=vse",
        ),
        (["copy", "vsee", "mine.toml"], "unknown preset 'vsee'; did you mean 'vse'?"),
        (["copy", "vse", "mine.txt"], "mine.txt must end in .toml"),
        (["train", "mine.toml", "{tiny}", "--out", "x"], "preset mine.toml could not be read"),
        (
            ["train", "vse", "{tiny}", "--out", "x", "--set", "loss=ranking"],
            "loss is now called terms, such as terms=ranking",
        ),
    ],
)
def test_errors_name_what_is_wrong_without_a_traceback(calligram, arguments, message, trained, tiny, tmp_path):
    filled = [a.format(tiny=tiny.folder, run=trained[0]) for a in arguments]
    done = calligram(*filled, cwd=tmp_path)
    assert done.returncode == 2
    assert message.format(tiny=tiny.folder, run=trained[0]) in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


def test_presets_matchers_terms_formats_and_papers_are_listed(calligram):
    rows = {tuple(line.split()[:2]) for line in calligram("list").stdout.splitlines()}
    for row in ("preset vse", "preset aoq-paper", "matcher scan", "term infonce", "term adversarial"):
        assert tuple(row.split()) in rows
    for row in ("format flickr8k", "format cuhk-pedes", "paper aoq"):
        assert tuple(row.split()) in rows
    assert "vse++" in calligram("list").stdout


def test_names_in_a_list_are_whole_on_a_narrow_screen(monkeypatch, capsys):
    monkeypatch.setattr("calligram.cli.train.console", Console(width=80))
    list_()
    assert "two-branch-phrases-similarity-paper" in capsys.readouterr().out


def test_settings_of_a_preset_are_shown_and_rare_ones_on_request(calligram):
    shown, every = (calligram("show", "vse", *flags).stdout for flags in ((), ("--all",)))
    assert "optim.weight_decay" in shown
    assert "optim.accumulate" not in shown
    assert "optim.accumulate" in every
    hidden = len(every.splitlines()) - len(shown.splitlines()) + 1  # the line that says how many
    assert f"{hidden} further settings: calligram show vse --all" in shown
    assert "ranking.margin" not in shown
    assert "ranking.margin" in calligram("show", "vse", "--set", "terms=ranking,infonce").stdout


def test_a_preset_is_copied_changed_and_trained(calligram, tiny, small, tmp_path):
    done = calligram("copy", "vse", "mine.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "calligram train mine.toml COLLECTION" in done.stdout
    again = calligram("copy", "vse", "mine.toml", cwd=tmp_path)
    assert again.returncode == 2
    assert "mine.toml exists already" in again.stderr
    file = tmp_path / "mine.toml"
    file.write_text(file.read_text() + 'terms = ["ranking"]\nepochs = 1\n')
    assert "ranking.margin" in calligram("show", "mine.toml", cwd=tmp_path).stdout
    done = calligram("train", "mine.toml", tiny.folder, "--out", "run", *small, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (about["preset"], about["recipe"], about["settings"]["terms"]) == ("mine", "pairs", ["ranking"])


@pytest.mark.parametrize(
    ("arguments", "code", "printed", "complained"),
    [
        (["--version"], 0, f"{__version__}\n", ""),
        (["trian"], 2, "", "error: unknown command 'trian'; did you mean 'train'?"),
        (["info", "nowhere"], 2, "", "error: nowhere is not a collection"),
    ],
)
def test_python_m_calligram_prints_the_same_and_ends_with_the_same_code(
    calligram, tmp_path, arguments, code, printed, complained
):
    real = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=180, env=PLAIN)
    assert (real.returncode, real.stdout) == (code, printed)
    assert real.stderr.startswith(complained)
    assert calligram(*arguments, cwd=tmp_path) == (real.returncode, real.stdout, real.stderr)


def test_a_verb_run_in_this_process_leaves_it_as_it_was(calligram, tiny, small, tmp_path):
    def state() -> tuple[object, ...]:
        logs = [logging.getLogger(name) for name in (None, "calligram")]
        streams = sys.argv, sys.stdin, sys.stdout, sys.stderr
        filters, random = list(warnings.filters), torch.get_rng_state().tolist()
        levels = [(log.level, list(log.handlers), log.isEnabledFor(logging.INFO)) for log in logs]
        return Path.cwd(), dict(os.environ), levels, streams, filters, random, torch.get_num_threads()

    before = state()
    train = ("train", "vse", tiny.folder, "--out", "run", "--set", "epochs=1", *small)
    assert [calligram(*train, cwd=tmp_path).returncode for _ in range(2)] == [0, 2]  # then there is a run
    assert state() == before
    assert (tmp_path / "run" / "run.json").is_file()


def test_help_lists_every_verb_by_section_and_imports_none_of_them():
    script = """
import sys
from calligram.cli.main import main
try:
    main()
finally:
    heavy = ("torch", "numpy", "pyarrow", "rich.markdown")
    found = [m for m in sys.modules if m.startswith("calligram.cli.") or m in heavy]
    print(sorted(found), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, env=PLAIN)
    assert done.returncode == 0
    assert done.stderr.strip() == "['calligram.cli.main']"
    listed = [line.split()[0] for line in done.stdout.partition("Try everything:")[2].splitlines() if line[:2] == "  "]
    assert listed == list(typer.main.get_command(app).commands)


@pytest.mark.parametrize("verb", [name for section in VERBS.values() for name in section])
def test_every_verb_explains_itself(calligram, verb):
    done = calligram(verb, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: calligram {verb} [OPTIONS]")
    summary = next(section[verb][1] for section in VERBS.values() if verb in section)
    assert len(summary) <= 64  # a line of 80 characters


def test_imports_without_garbage_collection_leave_it_as_it_was():
    assert gc.isenabled()
    with fast_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"), fast_imports():
        raise ValueError("inside")
    assert gc.isenabled()
    gc.unfreeze()


def test_import_runs_the_code_that_the_user_names(tmp_path):
    (tmp_path / "own_reader_of_a_test.py").write_text(
        "import calligram as cg\n\n@cg.reader('own-reader')\ndef read(source, problems): ...\n"
        "@cg.matcher('own-matcher')\nclass Own(cg.EmbeddingMatcher): ...\n"
    )
    words = [*COMMAND, "--import", str(tmp_path / "own_reader_of_a_test.py"), "list"]
    done = subprocess.run(words, capture_output=True, text=True, env=PLAIN)
    assert done.returncode == 0, done.stderr
    assert "own-reader" in done.stdout
    assert "own-matcher" in done.stdout
    help_text = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, env=PLAIN).stdout
    assert "This runs its code" in " ".join(help_text.split())


def test_a_shell_completes_verbs_and_options():
    """Asked as bash asks: the words of the line, and the number of the last one."""

    def complete(line: str) -> list[str]:
        environment = {**os.environ, "_CALLIGRAM_COMPLETE": "complete_bash", "COMP_WORDS": line}
        environment["COMP_CWORD"] = str(line.count(" "))
        done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True)
        return done.stdout.split()

    assert complete("calligram in") == ["info", "index"]
    assert complete("calligram index --read") == ["--read-text"]


@pytest.mark.parametrize("megabytes", [700, 1000])
def test_lack_of_memory_is_one_line_that_says_what_to_do(tmp_path, megabytes):
    """As after ``ulimit -v``: libraries in C++ and Rust end the process then, or raise errors of their own."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    done = subprocess.run(
        [*COMMAND, "index", "run", ".", "--out", "library"],
        capture_output=True, text=True, cwd=tmp_path, timeout=180, env=PLAIN, preexec_fn=limit, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert line.startswith("error: there is not enough memory (")
    assert line.endswith("GB of address space; raise the limit to 4 GB or more (ulimit -v)")
    assert "Traceback" not in done.stderr


def test_with_a_limit_of_memory_a_command_ends_as_without(tmp_path):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (40 << 30, 40 << 30))

    for words, code in (["--version"], 0), (["serch"], 2):
        done = subprocess.run(
            [*COMMAND, *words], capture_output=True, text=True, cwd=tmp_path, env=PLAIN, preexec_fn=limit, check=False
        )
        assert (done.returncode, "not enough memory" in done.stderr) == (code, False), done.stderr
