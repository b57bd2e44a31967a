from __future__ import annotations

import numpy as np
import pytest
import torch

from calligram.data.draft import CaptionRecord, Draft, ImageRecord
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.evaluation import suggest
from calligram.evaluation.recall import encode_pairing, load_pairing, score_matrix
from calligram.evaluation.suggest import suggest_images, uncertainties
from calligram.models.catalog import load_matcher
from calligram.recipes.parts.run import train_preset

SMALL = ("batch=6", "epochs=2", "dim=8", "text.word_dim=6", "text.hidden=8", "text.min_count=1", "image.features=f")
CROWDS = 5


@pytest.fixture(scope="module")
def crowds(tmp_path_factory):
    """Forty images of train in five crowds that features tell apart; only those of the first have captions."""
    folder = tmp_path_factory.mktemp("crowds")
    draft, random = Draft("crowds"), np.random.default_rng(0)
    values = []
    for split, count in (("train", 40), ("dev", 10), (None, 5)):
        for number in range(count):
            crowd = number % CROWDS
            name = f"{split}-{number}"
            values.append(3 * np.eye(8)[crowd] + 0.2 * random.normal(size=8))
            draft.images.append(ImageRecord(name, None, split, feature_rows={"f": len(values) - 1}))
            if split == "dev" or (split == "train" and crowd == 0):
                draft.captions.append(CaptionRecord(f"{name}#", f"thing {crowd} number{number}", (name,)))
    np.save(folder / "f.npy", np.array(values, dtype=np.float32))
    draft.features["f"] = [folder / "f.npy"]
    return write_draft(draft, folder / "collection")


@pytest.fixture(scope="module")
def run(crowds, tmp_path_factory):
    out = tmp_path_factory.mktemp("crowds-run") / "run"
    train_preset("vse", crowds, out, *SMALL)
    return load_matcher(out)


def test_each_uncaptioned_cluster_is_suggested_before_any_a_second_time(crowds, run):
    found = suggest_images(run.matcher, run.inputs, crowds, 8, uncertainty=0, near=0.9999)
    assert (found.candidates, found.captioned) == (37, 8)
    crowd = [int(s.image.rpartition("-")[2]) % CROWDS for s in found.chosen]
    assert set(crowd[:4]) == {1, 2, 3, 4}
    assert len({s.image for s in found.chosen}) == 8
    assert all(s.image.startswith(("train", "None")) for s in found.chosen)  # dev measures
    assert "far from what is captioned" in found.chosen[0].why
    assert "stands for" in found.chosen[0].why


def test_suggestions_are_reproducible_and_do_not_depend_on_the_batch_size(crowds, run, monkeypatch):
    whole = suggest_images(run.matcher, run.inputs, crowds, 10)
    assert suggest_images(run.matcher, run.inputs, crowds, 10) == whole
    monkeypatch.setattr(suggest, "IMAGE_BATCH", 7)
    assert [s.image for s in suggest_images(run.matcher, run.inputs, crowds, 10).chosen] == [
        s.image for s in whole.chosen
    ]


def test_best_scores_leave_out_an_images_own_captions(crowds, run, monkeypatch):
    """Against the whole matrix of scores, with every (image, caption) pair looked at by itself."""
    rows = np.array([5, 0, 10, 3])
    vectors, best = suggest._encode_and_score(run.matcher.eval(), run.inputs, crowds, rows, suggest.silent)
    pairing = suggest._captioned(crowds, rows)
    assert [len(pairing.matches.texts_of(i)) for i in range(4)] == [1, 1, 1, 0]
    scores = score_matrix(run.matcher, encode_pairing(run.matcher, run.inputs, load_pairing(run.inputs, pairing)))
    for place in range(4):
        others = [scores[place, t] for t in range(3) if t not in pairing.matches.texts_of(place)]
        assert float(best[place]) == pytest.approx(max(others), abs=1e-6)
    assert vectors.shape == (4, 8)


def test_uncertainty_is_the_share_of_captioned_images_that_score_higher():
    """Of the captioned scores 1, 2, 2, 4: three are higher than 1.5, none than 5, and of 2 one and two halves are."""
    found = uncertainties(torch.tensor([1.5, 5.0, 2.0, 0.0]), torch.tensor([2.0, 4.0, 1.0, 2.0]))
    assert found.tolist() == [0.75, 0.0, 0.5, 1.0]
    assert uncertainties(torch.zeros(2), torch.zeros(0)).tolist() == [1, 1]


def test_a_collection_without_captions_or_splits_is_covered_from_nothing(crowds, run, tmp_path):
    draft = Draft("bare", [ImageRecord(f"i{n}", None, None, feature_rows={"f": n}) for n in range(10)])
    draft.features["f"] = [crowds.folder / "features" / f.name for f in (crowds.folder / "features").iterdir()]
    bare = write_draft(draft, tmp_path / "bare")
    found = suggest_images(run.matcher, run.inputs, bare, 4)
    assert (found.candidates, found.captioned, len(found.chosen)) == (10, 0, 4)
    assert found.chosen[0].nearest == -1


def test_impossible_suggestions_are_refused(crowds, run):
    with pytest.raises(UserError, match=r"every image of split dev .* has a caption"):
        suggest_images(run.matcher, run.inputs, crowds, split="dev")
    with pytest.raises(UserError, match="unknown split 'tran'"):
        suggest_images(run.matcher, run.inputs, crowds, split="tran")
    with pytest.raises(UserError, match="from 0 to 1, got 2"):
        suggest_images(run.matcher, run.inputs, crowds, uncertainty=2)
    with pytest.raises(UserError, match="at least 1, got 0"):
        suggest_images(run.matcher, run.inputs, crowds, 0)
