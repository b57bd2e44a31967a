from __future__ import annotations

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from calligram.cli.main import app
from calligram.data.collection import Collection
from calligram.data.draft import RegionRecord
from calligram.data.write_collection import write_draft
from calligram.recipes.parts.run import train_preset
from calligram.recipes.parts.run_settings import SparseSettings


@pytest.fixture(scope="module")
def detected(tiny_draft, tmp_path_factory):
    """The tiny collection with what a detector says of every image."""
    folder = tmp_path_factory.mktemp("detected")
    (folder / "pictures").mkdir()
    draft = tiny_draft(folder / "pictures")
    for image in draft.images:
        draft.regions.append(
            RegionRecord(f"{image.id}/x", image.id, (1, 1, 9, 9), "yolox_nano", "disc", "small red", 0.9)
        )
    return write_draft(draft, folder / "collection")


def test_captions_are_left_out_by_the_seed_of_the_settings(detected, monkeypatch):
    asked, of = [], SparseSettings.of
    monkeypatch.setattr(SparseSettings, "of", lambda self, *given: (asked.append(given[1:]), of(self, *given))[1])
    shown = CliRunner().invoke(
        app, ["semantics", str(detected.folder), "--set", "sparse.images=0.1", "--set", "seed=3", "--json"]
    )
    assert shown.exit_code == 0, shown.output
    assert asked == [(3,)]


def test_pseudo_sentences_are_shown_with_their_overlap_with_captions(detected):
    shown = CliRunner().invoke(app, ["semantics", str(detected.folder), "--set", "sparse.images=0.1", "-n", "2"])
    assert shown.exit_code == 0, shown.output
    assert ": red disc" in shown.output
    asked = ["semantics", str(detected.folder), "--set", "sparse.images=0.1", "--json"]
    found = json.loads(CliRunner().invoke(app, asked).output)
    assert found["images"] == 5
    assert found["sentences"] == 1
    assert found["said"] == 2
    by_words = CliRunner().invoke(app, ["semantics", str(detected.folder), "--found"])
    assert (
        "text to image retrieval by shared words, tiny, dev: R@1 0.0" in by_words.output
    )  # all images have the same sentence


def test_uncaptioned_pictures_of_a_folder_belong_to_train(tmp_path):
    source, out = tmp_path / "pictures", tmp_path / "collection"
    source.mkdir()
    for number in range(12):
        Image.new("RGB", (20, 20), (number * 20, 60, 90)).save(source / f"{number}.png")
    rows = [f"{n}.png,a picture {n},{'train' if n < 4 else 'dev' if n < 6 else 'test'}" for n in range(8)]
    (source / "captions.csv").write_text("\n".join(["image,caption,split", *rows]) + "\n")
    done = CliRunner().invoke(app, ["import", "folder", str(source), str(out)])
    assert done.exit_code == 0, done.output
    collection = Collection.open(out)
    names = {"8.png", "9.png", "10.png", "11.png"}
    assert set(collection.unannotated("train").ids) == names
    assert len(collection.unannotated("dev")) == len(collection.unannotated("test")) == 0
    assert len(collection.sparse(0.5).unannotated("train")) == len(names) + 2
    assert set(collection.sentences("train").visuals.ids) == {"0.png", "1.png", "2.png", "3.png"}


def test_failures_with_unknown_words_are_counted(tiny, tmp_path):
    small = ["epochs=1", "batch=6", "dim=8", "text.word_dim=8", "text.hidden=8", "text.min_count=1", "image.size=32"]
    train_preset("vse", tiny, tmp_path / "run", *small, "sparse.images=0.5", "sparse.captions=1")
    asked = ["evaluate", str(tmp_path / "run"), str(tiny.folder), "--unknown", "--device", "cpu"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    assert "have an unknown word" in " ".join(shown.output.split())
    found = json.loads(CliRunner().invoke(app, [*asked, "--json"]).output.splitlines()[-1])["unknown"]
    assert found["failures"] + found["found"] == 14
    known = {w for text in tiny.sparse(0.5, 1).sentences("train").texts.strings for w in text.split()}
    strange = sum(bool(set(text.split()) - known) for text in tiny.sentences("test").texts.strings)
    assert found["failures_unknown"] + found["found_unknown"] == strange


def test_a_collection_without_splits_gets_a_hint_and_can_be_used_as_a_whole(tiny_draft, tmp_path):
    (tmp_path / "pictures").mkdir()
    draft = tiny_draft(tmp_path / "pictures")
    for image in draft.images:
        image.split = None
        draft.regions.append(RegionRecord(f"{image.id}/x", image.id, (1, 1, 9, 9), "yolox_nano", "disc", "", 0.9))
    collection = write_draft(draft, tmp_path / "collection")
    refused = CliRunner().invoke(app, ["semantics", str(collection.folder)])
    assert "unknown split 'train'; known: all. Give a captions file a column 'split'" in str(refused.exception)
    asked = ["semantics", str(collection.folder), "--split", "all", "--set", "pseudo.images=all", "--json"]
    assert json.loads(CliRunner().invoke(app, asked).output)["images"] == len(draft.images)
