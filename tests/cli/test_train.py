from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

from calligram.checksums import sealed
from calligram.cli.train import given_settings

PLAIN = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def test_training_writes_a_run_and_prints_the_next_command(trained):
    out, done = trained
    assert f"calligram evaluate {out}" in done.stdout.replace("\n", "")
    assert {"run.json", "matcher.json", "inputs", "best.safetensors", "metrics.jsonl", "curves.png"} <= {
        f.name for f in out.iterdir()
    }


def test_a_run_is_resumed_with_its_settings_and_described(trained, tiny, calligram):
    out, _ = trained
    done = calligram("train", "vse", tiny.folder, "--out", out, "--resume")
    assert done.returncode == 0, done.stderr
    refused = calligram("train", "vse", tiny.folder, "--out", out, "--resume", "--set", "dim=16")
    assert refused.returncode == 2
    printed = calligram("info", out).stdout
    assert "run of preset vse on collection" in printed
    assert "best of 2 epochs on dev: rsum" in printed
    assert "complete after" in printed


def test_a_run_made_in_python_is_not_resumed_without_its_settings(trained, tiny, calligram, tmp_path):
    shutil.copytree(trained[0], tmp_path / "run")
    file = tmp_path / "run" / "run.json"
    about = json.loads(file.read_text())
    for command in (None, "calligram.fit"):
        file.write_text(json.dumps(sealed({**about, "command": command} if command else without(about, "command"))))
        done = calligram("train", "vse", tiny.folder, "--out", tmp_path / "run", "--resume")
        assert done.returncode == 2
        assert 'was not started by "calligram train": give its settings with --set' in " ".join(done.stderr.split())
        assert ("command:" in calligram("info", tmp_path / "run").stdout) == (command is not None)


def test_a_run_is_resumed_where_its_settings_file_is(trained, tiny, calligram, tmp_path):
    shutil.copytree(trained[0], tmp_path / "run")
    file = tmp_path / "run" / "run.json"
    command = f"calligram train vse {tiny.folder} --out run --config own.toml"
    file.write_text(json.dumps(sealed({**json.loads(file.read_text()), "command": command})))
    done = calligram("train", "vse", tiny.folder, "--out", tmp_path / "run", "--resume")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "was started with --config own.toml, which is not here: resume in the folder" in said


def without(about, name):
    return {key: value for key, value in about.items() if key != name}


def test_the_settings_of_a_command_are_found():
    command = "calligram train vse 'my photos' --out run --set dim=64 --set=batch=8 --config own.toml"
    assert given_settings(command) == (["dim=64", "batch=8"], Path("own.toml"))
    assert given_settings("") == ([], None)


def test_settings_are_shown_with_their_values(calligram):
    printed = " ".join(calligram("show", "vse").stdout.split())
    assert "(linear, paper, release)" in printed


def test_a_stopped_training_prints_how_to_continue(tiny, small, tmp_path, preloaded):
    out = tmp_path / "run"
    listens = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # not so in the background
    asked = ["train", "vse", tiny.folder, "--out", out, "--set", "epochs=100000", *small]
    code, errors = f"{listens}; from calligram.cli.main import main; main()", tmp_path / "errors"
    with preloaded.start(code, *asked, env=PLAIN, errors=errors) as process:
        until = time.monotonic() + 180
        while not list((out / "state").glob("*")) and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        printed = process.stdout.read()
        assert process.wait() == 130, errors.read_text()
    assert f"stopped; the same command with --resume continues {out}" in printed.replace("\n", "")


def test_a_list_can_be_narrowed_to_a_word_and_an_unknown_one_gets_a_suggestion(calligram):
    lines = calligram("list", "scan").stdout.splitlines()
    names = [line.split()[1] for line in lines if line.startswith(("preset", "matcher", "term", "format"))]
    assert names[0] == "aoq-scan-paper"
    assert {"scan", "scan-release"} <= set(names)
    assert "two-branch" not in names
    refused = calligram("list", "scann")
    assert refused.returncode == 2
    assert "unknown name 'scann'; did you mean 'scan'?" in refused.stderr
