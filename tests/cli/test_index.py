"""``calligram index`` and ``calligram forget`` as a user runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import calligram as package
from calligram.cli.index import index
from calligram.cli.main import app
from calligram.errors import UserError
from calligram.features.images.pixels import PixelInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models import catalog
from calligram.models.catalog import INPUTS_FOLDER, MATCHER_FILE, RUN_FILE, WEIGHTS_FILE
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.vse import VSE, VSESettings
from calligram.search.library.library import Library


@pytest.fixture
def calligram(here, monkeypatch):
    """Runs a verb in this process, which has everything imported; gives what is printed."""
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
        assert done.exit_code == 0
        return done.stdout

    return run


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A run of random weights, nine photographs and a file that is none."""
    folder = tmp_path_factory.mktemp("index")
    words = Vocabulary.build(["a red disc", "snow"], min_count=1)
    (folder / "run").mkdir()
    (folder / "run" / RUN_FILE).write_text("{}\n")
    torch.manual_seed(0)
    matcher = VSE(
        VSESettings(
            ImageArchitecture("cnn", channels=(4, 8)),
            TextArchitecture(vocabulary=len(words), word_dim=6, hidden=8, pooling="last"),
            8,
        )
    )
    catalog.save(matcher, folder / "run" / MATCHER_FILE, folder / "run" / WEIGHTS_FILE)
    Inputs(PixelInput(16), words).save(folder / "run" / INPUTS_FOLDER)
    (folder / "photos").mkdir()
    for number in range(9):
        Image.effect_noise((40, 30), 20 + 5 * number).convert("RGB").save(folder / "photos" / f"{number}.jpg")
    (folder / "photos" / "broken.jpg").write_bytes(b"not a picture")
    (folder / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / "model" / name).touch()
    return folder


def test_a_folder_is_indexed_updated_and_forgotten(here, calligram):
    printed = calligram("index", "run", "photos", "--out", "library")
    assert "9 new, 1 unusable" in printed
    assert "library contains 9 pictures" in printed
    printed = calligram("index", "--problems", "library")
    assert printed.startswith(f"{here / 'photos' / 'broken.jpg'}: not a picture in a known format (JPEG, PNG, ")
    (here / "photos" / "0.jpg").rename(here / "photos" / "zero.jpg")
    (here / "photos" / "1.jpg").unlink()
    printed = calligram("index", "run", "photos", "--out", "library")
    assert "1 renamed, 1 gone, 1 unusable as before, 7 unchanged" in printed
    listed = calligram("forget", "library", "photos", "--where", "name = '2.jpg'", "--dry-run")
    assert listed == f"{here / 'photos' / '2.jpg'}\n1 pictures would be forgotten\n"
    assert calligram("forget", "library", "photos", "--where", "name = '2.jpg'") == "1 pictures forgotten\n"
    assert calligram("forget", "library", "photos/zero.jpg", "--where", "name = '2.jpg'") == "0 pictures forgotten\n"
    assert calligram("forget", "library", "photos/zero.jpg") == "1 pictures forgotten\n"
    assert calligram("forget", "library", "--gone") == "1 pictures forgotten\n"
    printed = calligram("index", "run", "photos", "--out", "library")
    assert "2 skipped because they were forgotten" in printed
    assert "6 unchanged" in printed
    printed = calligram("index", "run", "photos", "--out", "library", "--again")
    assert "2 new" in printed
    assert len(Library.open(here / "library")) == 8


def test_shards_can_be_encoded_at_the_same_time_and_committed_later(here, calligram, capsys):
    def encode(shard: str) -> None:
        index("run", Path("photos"), Path("sharded"), shard=shard, device="cpu")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(encode, ("1/2", "2/2")))
    assert (
        capsys.readouterr().out.count("pictures encoded; when all shards are done, run the command without --shard")
        == 2
    )
    calligram("index", "run", "photos", "--out", "sharded")
    assert len(Library.open(here / "sharded")) == len(list((here / "photos").glob("*.jpg"))) - 1


def test_the_precision_of_networks_is_chosen_and_shown(calligram):
    calligram("index", "run", "photos", "--out", "exact", "--precision", "fp32")
    assert "pictures encoded in fp32" in calligram("info", "exact")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["index"], "a folder of pictures is needed"),
        (["index", "model"], 'model is a model; give a folder of pictures after it: "calligram index model photos"'),
        (["index", "nowhere/at/all", "photos", "--out", "x"], "'nowhere/at/all' could not be loaded"),
        (["index", "run", "nowhere", "--out", "x"], "nowhere is not a folder; SOURCE is a folder of pictures"),
        (["index", "run", "photos", "--out", "photos"], "photos exists and is not a library"),
        (["index", "run", "photos", "--out", "x", "--shard", "9/3"], "--shard takes a number and a count such as 3/16"),
        (["index", "--problems", "photos"], "photos is not a library"),
        (["forget", "photos", "x"], "photos is not a library"),
    ],
)
def test_errors_say_what_to_do(here, calligram, arguments, message):
    with pytest.raises(UserError) as refused:
        calligram(*arguments)
    assert message in str(refused.value)
    assert not (here / "x" / "library.json").exists()


SLOW_INDEX = """
import time
from calligram.cli.main import main
from calligram.search.indexing.encode import ImageEncoder
def encode(*_):
    print("encoding", flush=True)
    time.sleep(600)
ImageEncoder.encode = encode
main()
"""


def test_ctrl_c_answers_at_once_and_the_next_run_continues(here, calligram, tmp_path):
    for number in range(20):
        pixels = np.random.default_rng(number).integers(0, 255, (300, 300, 3), dtype=np.uint8)
        (tmp_path / "many").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "many" / f"{number}.png", compress_level=0)
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    words = ["index", here / "run", tmp_path / "many", "--out", tmp_path / "library", "--device", "cpu"]
    command = [sys.executable, "-c", SLOW_INDEX, *words]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"encoding\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)  # a batch takes ten minutes
    assert process.returncode == 130
    assert b"stopped; the library keeps what was committed (every 20 seconds), and the same command continues" in said
    assert "new" in calligram(*map(str, words))
    assert len(Library.open(tmp_path / "library")) == 20
