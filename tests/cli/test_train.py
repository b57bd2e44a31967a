from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

PLAIN = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def test_training_writes_a_run_and_prints_the_next_command(trained):
    out, done = trained
    assert f"calligram evaluate {out}" in done.stdout.replace("\n", "")
    assert {"run.json", "matcher.json", "inputs", "best.safetensors", "metrics.jsonl", "curves.png"} <= {
        f.name for f in out.iterdir()
    }


def test_a_stopped_training_prints_how_to_continue(tiny, small, tmp_path):
    out = tmp_path / "run"
    listens = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # not so in the background
    command = [sys.executable, "-c", f"{listens}; from calligram.cli.main import main; main()"]
    asked = [*command, "train", "vse", str(tiny.folder), "--out", str(out), "--set", "epochs=100000", *small]
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
    assert f"stopped; the same command with --resume continues {out}" in printed.replace("\n", "")
