from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch

from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.errors import UserError
from calligram.evaluation import retrieval as protocols
from calligram.evaluation.figures import draw_pictures, draw_sheet
from calligram.evaluation.recall import encode_pairing, encode_texts, load_pairing, score_matrix
from calligram.features.images.pixels import PixelInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.vse import VSE, VSESettings


@pytest.fixture(scope="module")
def setup(tiny):
    pairing = tiny.sentences("test")
    vocabulary = Vocabulary.build(pairing.texts.strings, 1)
    torch.manual_seed(0)
    matcher = VSE(
        VSESettings(
            ImageArchitecture("cnn", channels=(4,)),
            TextArchitecture(vocabulary=len(vocabulary), word_dim=6, hidden=8, pooling="last"),
            8,
        )
    ).eval()
    return matcher, Inputs(PixelInput(16), vocabulary), pairing


def five_captions_per_image(scores: np.ndarray) -> tuple[list[int], list[int]]:
    """Ranks by the field's loops, for the layout they assume: captions 5i .. 5i + 4 belong to image i."""
    i2t = [min(int((scores[i] > scores[i, c]).sum()) + 1 for c in range(5 * i, 5 * i + 5)) for i in range(len(scores))]
    t2i = [int((scores[:, c] > scores[c // 5, c]).sum()) + 1 for c in range(scores.shape[1])]
    return i2t, t2i


def test_both_directions_agree_with_the_fields_loops():
    scores = np.random.default_rng(0).random((20, 100))
    matches = Matches(np.repeat(np.arange(20), 5), np.arange(100), (20, 100))
    found = protocols.measure_retrieval(scores, matches)
    i2t, t2i = five_captions_per_image(scores)
    for direction, ranks in ((found.i2t, i2t), (found.t2i, t2i)):
        assert direction.r5 == pytest.approx(100 * np.mean(np.array(ranks) <= 5))
        assert direction.medr == np.floor(np.median(ranks))
        assert direction.meanr == pytest.approx(np.mean(ranks))
    assert found.rsum == pytest.approx(sum((found.i2t.r1, found.i2t.r5, found.i2t.r10, found.t2i.rsum)))


def test_shuffling_captions_changes_nothing():
    rng = np.random.default_rng(1)
    scores, order = rng.random((20, 100)), rng.permutation(100)
    matches = Matches(np.repeat(np.arange(20), 5), np.arange(100), (20, 100))
    shuffled = matches.select(np.arange(20), order)
    one, two = protocols.measure_retrieval(scores[:, order], shuffled), protocols.measure_retrieval(scores, matches)
    for direction in ("i2t", "t2i"):
        assert asdict(getattr(one, direction)) == pytest.approx(asdict(getattr(two, direction)))


def test_folds_are_the_mean_of_contiguous_parts(setup):
    _, _, pairing = setup
    scores = np.random.default_rng(2).random((6, 14)).astype(np.float32)
    halves = [pairing.select(np.arange(start, start + 3)) for start in (0, 3)]
    expected = []
    for half in halves:
        rows = [pairing.visuals.ids.index(i) for i in half.visuals.ids]
        columns = [pairing.texts.ids.index(i) for i in half.texts.ids]
        expected.append(protocols.measure_retrieval(scores[np.ix_(rows, columns)], half.matches).t2i.r1)
    assert protocols.measure_folds(scores, pairing, 2).t2i.r1 == pytest.approx(np.mean(expected))
    with pytest.raises(UserError, match="6 images cannot be divided into 4 equal folds"):
        protocols.measure_folds(scores, pairing, 4)


def test_a_score_matrix_in_tiles_or_in_a_file_equals_the_whole(setup):
    matcher, inputs, pairing = setup
    encoded = encode_pairing(matcher, inputs, load_pairing(inputs, pairing))
    whole = matcher.score(encoded.images, encoded.texts).detach().numpy()
    np.testing.assert_allclose(score_matrix(matcher, encoded, rows=4), whole, rtol=1e-5)
    np.testing.assert_allclose(score_matrix(matcher, encoded, rows=4, budget=0), whole, rtol=1e-5)


def test_texts_come_back_in_their_order(setup):
    matcher, inputs, pairing = setup
    together = encode_texts(matcher, load_pairing(inputs, pairing).texts, batch=3).vectors
    for place, string in enumerate(pairing.texts.strings):
        alone = matcher.encode_texts(*inputs.texts.texts([string])).vectors[0]
        torch.testing.assert_close(together[place], alone)


def test_a_report_has_the_keys_others_read(setup):
    matcher, inputs, pairing = setup
    found = protocols.evaluate_retrieval(matcher, inputs, pairing, within_modality=True).as_dict()
    assert {"i2t", "t2i", "rsum"} <= set(found)
    assert {"r1", "r5", "r10", "medr", "meanr"} <= set(found["i2t"])
    assert set(found["within"]) == {"i2i", "t2t"}  # images share a caption, and captions an image
    assert "oracle" not in found


def test_the_oracle_is_reported_where_all_true_pairs_are_known(setup):
    matcher, inputs, pairing = setup
    visual, text = pairing.matches.pairs()
    also = Matches(np.append(visual, [1, 2]), np.append(text, [0, 0]), pairing.matches.shape)
    found = protocols.evaluate_retrieval(
        matcher, inputs, Pairing(pairing.visuals, pairing.texts, pairing.matches, also)
    )
    assert found.oracle is not None
    assert found.true is not None
    assert found.oracle.t2i.r1 < 100
    assert found.true.t2i.r1 >= found.retrieval.t2i.r1


def test_within_one_modality_the_query_itself_does_not_count():
    vectors = np.eye(3)[[0, 0, 1]]
    found = protocols.retrieval_within(vectors, Matches([0, 1, 2], [0, 0, 1], (3, 2)))
    assert found is not None
    assert (found.r1, found.queries) == (100, 2)
    assert protocols.retrieval_within(vectors, Matches([0, 1, 2], [0, 1, 2], (3, 3))) is None


def test_identities_match_across_images(tiny, setup):
    matcher, inputs, _ = setup
    pairing = tiny.identities("test")
    assert len(pairing.matches) > len(tiny.sentences("test").matches)
    assert protocols.evaluate_retrieval(matcher, inputs, pairing).retrieval.t2i.queries == 14


def test_a_split_without_captions_is_refused(setup):
    matcher, inputs, pairing = setup
    none = Pairing(pairing.visuals, pairing.texts, Matches([], [], pairing.matches.shape))
    with pytest.raises(UserError, match="no captions"):
        protocols.evaluate_retrieval(matcher, inputs, none)


def test_a_sheet_is_drawn(setup, tmp_path):
    matcher, inputs, pairing = setup
    draw_sheet(matcher, inputs, pairing, tmp_path / "deep" / "sheet.png", queries=3)
    assert (tmp_path / "deep" / "sheet.png").stat().st_size > 5000


def test_retrieved_items_overlap_and_correlation_are_drawn(setup, tmp_path):
    matcher, inputs, pairing = setup
    seen = []
    protocols.evaluate_retrieval(
        matcher, inputs, pairing, on_scores=lambda encoded, scores: seen.append((encoded, scores))
    )
    before = np.random.default_rng(0).normal(size=(6, 5))
    drawn = draw_pictures(matcher, *seen[0], pairing, tmp_path / "pictures", before=before)
    names = ["images.png", "texts.png", "ranks.png", "overlap.png", "correlation.png", "map.png"]
    assert [file.name for file in drawn] == names
    assert all(file.stat().st_size > 3000 for file in drawn)


def test_a_report_has_chance_and_overlap(setup):
    matcher, inputs, pairing = setup
    found = protocols.evaluate_retrieval(matcher, inputs, pairing).as_dict()
    assert found["chance"]["t2i"]["r1"] == pytest.approx(100 / 6 * (13 + 2) / 14)  # one text of fourteen has two images
    assert 0 <= found["overlap"]["s"] <= 1
    assert "chance" not in protocols.evaluate_retrieval(matcher, inputs, pairing, folds=2).as_dict()
