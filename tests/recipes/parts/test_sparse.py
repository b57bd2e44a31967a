from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from calligram.checksums import sealed
from calligram.data.sparse import count_annotations, extended, half, half_steps
from calligram.errors import UserError
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, epochs_factor, run_preset
from calligram.training.runs import Run

SMALL = ("batch=6", "dim=16", "text.word_dim=8", "text.hidden=16", "text.min_count=1", "texts=1", "image.crop=1")


def run(collection, out, *changes, resume=False):
    preset = PRESETS["vse"]
    settings = resolve(preset.defaults, [*SMALL, "image.size=32", "epochs=2", *changes])
    context = RunContext(torch.device("cpu"))
    return run_preset(preset, settings, collection, out, resume=resume, context=context)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_the_settings_of_sparse_collections(name):
    settings = resolve(PRESETS[name].defaults, ["sparse.images=0.1", "sparse.captions=2", "sparse.seed=3"])
    assert (settings.sparse.images, settings.sparse.captions, settings.sparse.seed) == (0.1, 2, 3)


def test_words_of_removed_captions_are_not_in_the_vocabulary(tiny, tmp_path):
    run(tiny, tmp_path / "run", "sparse.images=0.5", "sparse.captions=1")
    words = set(Run.open(tmp_path / "run").load()[1].texts.words)
    sparse = tiny.sparse(0.5, 1)
    assert words - {"<pad>", "<start>", "<end>", "<unk>"} == {
        word for text in sparse.sentences("train").texts.strings for word in text.split()
    }
    assert {"red", "green", "blue", "yellow", "white", "black"} - words


def test_a_run_records_its_level_and_is_not_resumed_with_another(tiny, tmp_path):
    run(tiny, tmp_path / "run", "sparse.images=0.5")
    about = Run.open(tmp_path / "run").about
    assert about["collection"] == "tiny (50% of images x all captions, seed 0)"
    assert about["content"] == tiny.sparse(0.5).fingerprint
    with pytest.raises(UserError, match=r"other settings: sparse.images was 0.5, now 0.9; resume"):
        run(tiny, tmp_path / "run", "sparse.images=0.9", resume=True)


def test_runs_older_than_the_sparse_settings_can_be_resumed(tiny, tmp_path):
    first = run(tiny, tmp_path / "run")
    file = tmp_path / "run" / "run.json"
    about = json.loads(file.read_text())
    del about["settings"]["sparse"]
    file.write_text(json.dumps(sealed(about)))
    assert run(tiny, tmp_path / "run", resume=True) == first
    with pytest.raises(UserError, match=r"other settings: sparse\.captions was None, now 1"):
        run(tiny, tmp_path / "run", "sparse.captions=1", resume=True)


def test_a_level_that_leaves_no_caption_is_refused(tiny, tmp_path):
    with pytest.raises(UserError, match=r"no training image keeps a caption in tiny \(1% of images.*sparse.images"):
        run(tiny, tmp_path / "run", "sparse.images=0.01")
    assert not (tmp_path / "run").exists()


def test_epochs_are_extended_as_the_paper_says():
    assert [extended(share) for share in (1.0, 0.5, 0.2, 0.1, 0.02)] == pytest.approx([1.0, 1.2, 2.0, 2.5, 2.5])
    shares = np.linspace(0.01, 1, 100)
    assert (np.diff([extended(share) for share in shares]) <= 1e-12).all()
    assert [half(share) for share in (1.0, 0.5, 0.1)] == [1.0, 1.0, 5.0]


@pytest.mark.parametrize(
    ("epoch_of", "length", "factor"),
    [
        ("pairs", "as-set", 1.0),
        ("images", "extended", 2.0),  # by annotations, whatever an epoch is
    ],
)
def test_a_sparse_run_takes_longer(tiny, epoch_of, length, factor):
    changes = [f"epoch_of={epoch_of}", f"sparse.length={length}", "sparse.images=0.5", "sparse.captions=1"]
    settings = resolve(PRESETS["vse"].defaults, changes)
    assert epochs_factor(settings, tiny, settings.sparse.of(tiny)) == pytest.approx(factor)


def test_stages_with_more_epochs_are_trained(tiny, tmp_path):
    run(tiny, tmp_path / "run", "sparse.images=0.5", "sparse.captions=1", "epoch_of=pairs", "sparse.length=extended")
    assert max(row["epoch"] for row in Run.open(tmp_path / "run").metrics() if "dev" in row) == round(2.0 * 2) - 1


@pytest.mark.parametrize("level", [("0.34", "none"), ("1", "1"), ("0.5", "1")])
def test_half_of_the_steps_in_as_many_epochs_at_every_level(tiny, tmp_path, level):
    """Fifteen pairs in batches of 2 take 7.5 steps an epoch; half of two epochs is eight steps."""
    given = (f"sparse.images={level[0]}", f"sparse.captions={level[1]}")
    run(tiny, tmp_path / "run", *given, "batch=2", "epoch_of=pairs", "sparse.length=half")
    rows = [row for row in Run.open(tmp_path / "run").metrics() if "dev" in row]
    assert [row["step"] for row in rows] == [4, 8]


def test_a_pass_of_half_of_the_items_is_not_changed(tiny):
    assert half_steps(tiny, tiny.sparse(0.5), 2, "images") == 0
    assert half_steps(tiny, tiny.sparse(0.5, 1), 2, "pairs") == 4
    captions = np.bincount(tiny.sentences("train").matches.pairs()[0])
    assert count_annotations(tiny, "pairs", 2) == sum(np.ceil(captions / 2))


def test_the_choice_of_captions_follows_the_seed_of_the_run(tiny, tmp_path):
    seen = {}
    for seed in range(3):
        run(tiny, tmp_path / f"{seed}", "sparse.images=0.5", "sparse.captions=1", f"seed={seed}", "epochs=1")
        seen[seed] = Run.open(tmp_path / f"{seed}").about["content"]
        assert seen[seed] == tiny.sparse(0.5, 1, seed).fingerprint
    assert len(set(seen.values())) == 3


def test_text_vectors_are_fitted_on_kept_captions_whatever_was_cached_before(stored_tiny, tmp_path):
    preset = PRESETS["cca"]
    words = {}
    for name, changes in (("all", ()), ("few", ("sparse.images=0.5", "sparse.captions=1"))):
        given = ["image.features=colour", "text.fitted.kind=tfidf", "cca.eta=0.1", *changes]
        run_preset(preset, resolve(preset.defaults, given), stored_tiny, tmp_path / name)
        words[name] = set(Run.open(tmp_path / name).load()[1].texts.vectorizer.known.words)
    kept = stored_tiny.sparse(0.5, 1).sentences("train").texts.strings
    assert words["few"] <= {word for string in kept for word in string.split()} < words["all"]
