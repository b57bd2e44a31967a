"""The command as a user runs it: real files, what is printed, and a real process where that is what matters."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
import typer
from PIL import Image

from calligram import __version__
from calligram.cli.main import VERBS, app

SMALL = [
    flag
    for change in (
        "batch=6", "dim=8", "image.size=16", "image.channels=4", "text.word_dim=6", "text.hidden=8", "text.min_count=1",
    )
    for flag in ("--set", change)
]  # fmt: skip

COMMAND = [sys.executable, "-m", "calligram"]
PLAIN = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


@pytest.fixture(scope="module")
def trained(calligram, tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    done = calligram("train", "vse", tiny.folder, "--out", out, "--set", "epochs=2", *SMALL)
    assert done.returncode == 0, done.stderr
    return out, done


def test_training_leaves_a_run_and_says_what_to_do_next(trained):
    out, done = trained
    assert f"calligram evaluate {out}" in done.stdout.replace("\n", "")
    assert {"run.json", "matcher.json", "inputs", "best.safetensors", "metrics.jsonl", "curves.png"} <= {
        f.name for f in out.iterdir()
    }


def test_a_training_that_is_stopped_says_how_to_go_on(tiny, tmp_path):
    out = tmp_path / "run"
    listens = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # not so in the background
    command = [sys.executable, "-c", f"{listens}; from calligram.cli.main import main; main()"]
    asked = [*command, "train", "vse", str(tiny.folder), "--out", str(out), "--set", "epochs=100000", *SMALL]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=PLAIN) as process:
        until = time.monotonic() + 60
        while not list((out / "state").glob("*")) and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            printed, complained = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, complained
    assert f"stopped; the same command with --resume goes on with {out}" in printed.replace("\n", "")


def test_evaluation_prints_the_json_that_others_read(calligram, trained, tiny):
    done = calligram("evaluate", trained[0], tiny.folder, "--split", "test", "--json")
    found = json.loads(done.stdout)
    assert {"r1", "r5", "r10", "medr", "meanr"} <= set(found["i2t"])
    assert found["rsum"] == pytest.approx(sum(found[d][k] for d in ("i2t", "t2i") for k in ("r1", "r5", "r10")))


def test_evaluation_prints_a_table_draws_a_sheet_and_records(calligram, trained, tiny, tmp_path):
    done = calligram(
        "evaluate", trained[0], tiny.folder, "--folds", "2", "--sheet", tmp_path / "sheet.png",
        "--record", tmp_path / "results" / "a.jsonl",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "text to image" in done.stdout
    assert "mean of 2 folds" in done.stdout
    assert (tmp_path / "sheet.png").is_file()
    line = json.loads((tmp_path / "results" / "a.jsonl").read_text())
    assert {"recipe", "settings", "seed", "collection", "split", "i2t", "t2i", "rsum", "members", "seconds", "hardware",
            "commit", "command"} <= set(line)  # fmt: skip
    assert line["settings"]["epochs"] == 2
    done = calligram("report", "--results", tmp_path / "results", "--docs", tmp_path / "docs")
    assert done.returncode == 0, done.stderr
    assert "## tiny" in (tmp_path / "docs" / "results.md").read_text()


def test_candidates_alone_can_be_scored_behind_another_run(calligram, trained, tiny, tmp_path):
    results = tmp_path / "results" / "a.jsonl"
    asked = ["evaluate", trained[0], tiny.folder, "--no-identities", "--first", trained[0] / "inputs" / ".."]
    done = calligram(*asked, "--depth", "3", "--record", results)
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stdout.split())
    assert "reranked 3 candidates of run; a match is among them for" in told
    assert "recall@3" in told
    line = json.loads(results.read_text())
    assert line["precision"] == "fp32"
    assert line["stages"]["first"] == "run"
    assert line["stages"]["scored"] < 1
    calligram("report", "--results", results.parent, "--docs", tmp_path / "docs")
    assert "(reranking 3 candidates of run)" in (tmp_path / "docs" / "results.md").read_text()
    whole = json.loads(calligram("evaluate", trained[0], tiny.folder, "--no-identities", "--json").stdout)
    full = json.loads(calligram(*asked, "--depth", "0", "--json").stdout)
    assert full["t2i"] == whole["t2i"]


def test_identities_can_be_asked_for(calligram, trained, tiny):
    done = calligram("evaluate", trained[0], tiny.folder, "--identities", "--json")
    assert json.loads(done.stdout)["t2i"]["queries"] == 14


def test_identities_are_the_default_where_there_are_any_and_pictures_are_drawn(calligram, trained, tiny, tmp_path):
    done = calligram(
        "evaluate", trained[0], tiny.folder, "--json", "--pictures", tmp_path / "p", "--record", tmp_path / "r.jsonl"
    )
    assert done.returncode == 0, done.stderr
    found, line = json.loads(done.stdout), json.loads((tmp_path / "r.jsonl").read_text())
    assert found["by"] == line["by"] == "identities"
    assert line["chance"]["r1"] == pytest.approx(found["chance"]["t2i"]["r1"], abs=0.01)
    assert line["overlap"] == pytest.approx(found["overlap"]["s"], abs=1e-4)
    assert {file.name for file in (tmp_path / "p").iterdir()} == {
        "images.png", "texts.png", "ranks.png", "overlap.png", "correlation.png",
    }  # fmt: skip
    assert "by" not in json.loads(calligram("evaluate", trained[0], tiny.folder, "--no-identities", "--json").stdout)
    done = calligram("evaluate", trained[0], tiny.folder)
    told = " ".join(done.stdout.split())  # lines are broken where a long path wants it
    assert all(words in told for words in ("by identity", " chance ", "mAP", "overlap by S = "))


def test_a_folder_of_pictures_becomes_a_collection_with_problems_counted(calligram, tmp_path):
    source = tmp_path / "photos"
    source.mkdir()
    for name in ("a", "b", "c"):
        Image.new("RGB", (30, 20), "red").save(source / f"{name}.jpg")
        (source / f"{name}.txt").write_text(f"picture {name}\nanother of {name}\n")
    (source / "broken.jpg").write_bytes(b"not a picture")
    done = calligram("import", "folder", source, tmp_path / "collection")
    assert done.returncode == 0, done.stderr
    assert "3 images, 6 captions" in done.stdout
    assert "1 skipped: unusable image (broken.jpg)" in done.stdout
    done = calligram("info", tmp_path / "collection", "--problems")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "collection" / "sheet.png").is_file()
    assert "broken.jpg" in done.stdout
    done = calligram("import", "folder", source, tmp_path / "strict", "--strict")
    assert done.returncode == 2
    assert "--strict" in done.stderr
    assert not (tmp_path / "strict").exists()


def test_importing_again_says_where_added_captions_are_and_what_contradicts(calligram, tmp_path):
    source, made = tmp_path / "in", tmp_path / "collection"
    source.mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (20, 20)).save(source / name)
    (source / "captions.csv").write_text("file,caption,place\na.png,one,Oslo\na.png,two,Rome\nb.png,,Oslo\n")
    done = calligram("import", "folder", source, made)
    assert "1 skipped: contradictory place (captions.csv line 3)" in done.stdout
    assert "metadata of images (how many have a value): place 2" in calligram("info", made).stdout
    (tmp_path / "list.csv").write_text("image,caption\nb.png,three\n")
    assert calligram("caption", made, tmp_path / "list.csv").returncode == 0
    done = calligram("import", "folder", source, made, "--overwrite")
    assert done.returncode == 0, done.stderr
    kept = made / "added-by-hand.2.csv"
    assert f'1 caption added since the last import kept in {kept}; "calligram caption {made} {kept}"' in done.stdout
    assert "1 caption added" in calligram("caption", made, kept).stdout


def test_scenes_are_drawn(calligram, tmp_path):
    done = calligram("scenes", tmp_path / "scenes", "--images", "30", "--size", "32")
    assert done.returncode == 0, done.stderr
    assert "30 images and 150 captions" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "unknown command 'trian'; did you mean 'train'?"),
        (["train", "vsee", "{tiny}", "--out", "x"], "unknown recipe 'vsee'; did you mean 'vse'?"),
        (
            ["train", "vse", "{tiny}", "--out", "x", "--set", "epoch=2"],
            "unknown setting 'epoch'; did you mean 'epochs'?",
        ),
        (["train", "vse", "nowhere", "--out", "x"], "nowhere is not a collection"),
        (["train", "vse", "{tiny}", "--out", "x", "--device", "gpu"], "unknown device 'gpu'; known: auto, cpu, cuda"),
        (["evaluate", "nowhere", "{tiny}"], "nowhere is not a run"),
        (["evaluate", "{run}", "{tiny}", "--split", "tset"], "unknown split 'tset'; did you mean 'test'?"),
        (["evaluate", "{run}", "{tiny}", "--folds", "4"], "6 images cannot be cut into 4 equal folds"),
        (["evaluate", "{run}", "{tiny}", "--folds", "2", "--within"], "--within is measured over the whole split"),
        (["evaluate", "{run}", "{tiny}", "--sheet", "s.xyz"], "must end in .png"),
        (["evaluate", "{run}", "{tiny}", "--record", "."], "is a folder; give a file"),
        (["evaluate", "{run}", "{tiny}", "--first", "{run}"], "say with --depth how many"),
        (["evaluate", "{run}", "{tiny}", "--depth", "5"], "leave out --depth, or name with --first a run"),
        (["evaluate", "{run}", "{tiny}", "--depth", "5", "--unknown"], "look at the scores of all pairs"),
        (["evaluate", "{run}", "{tiny}", "--precision", "bf16"], "--precision bf16 is for matchers that compare"),
        (["train", "vse", "{tiny}", "--out", "/proc/nowhere/x", "--set", "epochs=1"], "/proc/nowhere"),
        (["import", "flikr8k", "x", "y"], "unknown format 'flikr8k'; did you mean 'flickr8k'?"),
        (["reproduce", "vse", "{tiny}"], "there is no study of paper 'vse'"),
        (["report", "--results", "nowhere"], "nowhere is not a folder of results"),
        (["list", "vsee"], "did you mean 'vse'?"),
    ],
)
def test_errors_name_what_is_wrong_without_a_traceback(calligram, arguments, message, trained, tiny, tmp_path):
    filled = [a.format(tiny=tiny.folder, run=trained[0]) for a in arguments]
    done = calligram(*filled, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


def test_everything_there_is_can_be_listed(calligram):
    done = calligram("list")
    assert all(word in done.stdout for word in ("vse", "flickr8k", "cuhk-pedes", "vse++"))
    done = calligram("list", "vse")
    assert "optim.weight_decay" in done.stdout


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
    real = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=60, env=PLAIN)
    assert (real.returncode, real.stdout) == (code, printed)
    assert real.stderr.startswith(complained)
    assert calligram(*arguments, cwd=tmp_path) == (real.returncode, real.stdout, real.stderr)


def test_a_verb_run_in_this_process_leaves_it_as_it_was(calligram, tiny, tmp_path):
    def state() -> tuple[object, ...]:
        logs = [logging.getLogger(name) for name in (None, "calligram")]
        streams = sys.argv, sys.stdin, sys.stdout, sys.stderr
        filters, random = list(warnings.filters), torch.get_rng_state().tolist()
        levels = [(log.level, list(log.handlers), log.isEnabledFor(logging.INFO)) for log in logs]
        return Path.cwd(), dict(os.environ), levels, streams, filters, random, torch.get_num_threads()

    before = state()
    train = ("train", "vse", tiny.folder, "--out", "run", "--set", "epochs=1", *SMALL)
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
    found = [m for m in sys.modules if m.startswith("calligram.") or m in heavy]
    print(sorted(found), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, env=PLAIN)
    assert done.returncode == 0
    assert done.stderr.strip() == "['calligram.cli', 'calligram.cli.main', 'calligram.errors']"
    listed = [line.split()[0] for line in done.stdout.partition("Try everything:")[2].splitlines() if line[:2] == "  "]
    assert listed == list(typer.main.get_command(app).commands)


@pytest.mark.parametrize("verb", [name for section in VERBS.values() for name in section])
def test_every_verb_explains_itself(calligram, verb):
    done = calligram(verb, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: calligram {verb} [OPTIONS]")
    summary = next(section[verb][1] for section in VERBS.values() if verb in section)
    assert len(summary) <= 66  # a line of 80 characters
