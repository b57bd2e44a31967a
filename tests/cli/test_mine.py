from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from calligram.cli.main import app
from calligram.data.negatives import NegativeLists
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.recipes.parts.run import train_preset
from calligram.training.runs import Run

SMALL = ("batch=6", "epochs=1", "dim=8", "image.size=16", "image.channels=4", "text.word_dim=6", "text.hidden=8")


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("mine") / "run"
    train_preset("vse", tiny, out, *SMALL)
    return out


def mine(*arguments):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["mine", *map(str, arguments)])


def test_mining_stores_lists_with_fingerprints_and_prints_the_next_command(trained, tiny, tmp_path):
    out = tmp_path / "negatives"
    done = mine(trained, tiny.folder, "--out", out, "--texts", 4, "--images", 2, "--ranks", "--batch", 3)
    assert done.exit_code == 0, done.output
    assert "4 texts for each of 6 images and 2 images for each of 14 texts" in done.output
    assert f"--set offline.negatives={out}" in done.output.replace("\n", "")
    about = json.loads((out / "negatives.json").read_text())
    assert about["content"] == tiny.fingerprint
    assert len(about["run"]) == 24
    assert about["online_ranks"]["texts"]["anchors"] == 6
    assert 1 <= about["online_ranks"]["images"]["mean"] <= 5
    train = tiny.sentences("train").join_equal_texts()
    assert NegativeLists.open(out).aligned_to(train).texts.shape == (6, 4)
    train_preset(
        "aoq", tiny, tmp_path / "run", *SMALL, "epochs=10", "warmup_epochs=0", "batch=2", f"offline.negatives={out}"
    )
    logged = [row["offline_harder"] for row in Run(tmp_path / "run").metrics() if "loss" in row]
    assert logged
    assert all(0 <= share <= 1 for share in logged)


def test_default_lists_are_a_share_of_all_items_and_their_use_is_always_reported(trained, tiny, tmp_path):
    done = mine(trained, tiny.folder, "--out", tmp_path / "lists", "--batch", 3)
    assert done.exit_code == 0, done.output
    # 0.2% of 14 texts is less than the smallest length of a list, 10; there are only 6 images.
    assert "10 texts for each of 6 images and 6 images for each of 14 texts" in done.output
    about = json.loads((tmp_path / "lists" / "negatives.json").read_text())["online_ranks"]
    said = (
        f"a text drawn from a list is harder than the hardest one of 3 images in {100 * about['texts']['harder']:.0f}%"
    )
    assert said in done.output
    assert f"an image in {100 * about['images']['harder']:.0f}%" in done.output.replace("\n", " ")
    assert "mean rank" not in done.output
    done = mine(trained, tiny.folder, "--out", tmp_path / "longer", "--share", 0.9, "--batch", 3)
    assert "13 texts for each of 6 images" in done.output


def test_ranks_of_a_split_of_one_image_are_refused_and_the_lists_kept(trained, tiny_draft, tmp_path):
    (tmp_path / "pictures").mkdir()
    draft = tiny_draft(tmp_path / "pictures")
    for image in draft.images:
        image.split = "train" if image.id == "train-1" else "dev"
    collection = write_draft(draft, tmp_path / "collection")
    done = mine(trained, collection.folder, "--out", tmp_path / "lists", "--ranks")
    assert isinstance(done.exception, UserError)
    assert "split train of tiny has 1 and" in str(done.exception)
    assert NegativeLists.open(tmp_path / "lists").image_ids == ("train-1",)


def test_a_folder_that_exists_is_not_overwritten(trained, tiny, tmp_path):
    done = mine(trained, tiny.folder, "--out", tmp_path)
    assert isinstance(done.exception, UserError)
    assert "exists; give another folder with --out" in str(done.exception)
