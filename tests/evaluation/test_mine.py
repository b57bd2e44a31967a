from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from calligram.data.matches import Matches
from calligram.data.negatives import NegativeLists
from calligram.errors import NotFiniteError, UserError
from calligram.evaluation.mine import list_length, mine_negatives, mine_pairing, top_candidates
from calligram.evaluation.recall import EncodedPairing
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.matcher import EmbeddingMatcher, Encoded, Matcher
from calligram.models.vse import VSE, VSESettings
from calligram.vectors import unit_length


class Product(Matcher):
    """A score that is no cosine, so that it goes through ``score``."""

    def score(self, images, texts):
        return images.vectors @ texts.vectors.T


def encoded(images=40, texts=130, dim=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return EncodedPairing(*(Encoded(torch.randn(n, dim, generator=generator)) for n in (images, texts)))


def many_to_many(images=40, texts=130):
    random = np.random.default_rng(0)
    visual, text = random.integers(images, size=300), random.integers(texts, size=300)
    # Image 3 matches every text, text 5 every image: neither has a negative.
    visual = np.concatenate([visual, np.full(texts, 3), np.arange(images)])
    text = np.concatenate([text, np.arange(texts), np.full(images, 5)])
    return Matches(visual, text, (images, texts))


def by_full_sort(scores, matches, k):
    """The literal way: sort everything, leave out what matches."""
    found = np.full((scores.shape[0], min(k, scores.shape[1])), -1)
    for row, values in enumerate(scores):
        own = set(matches.texts_of(row).tolist())
        ordered = [c for c in np.argsort(-values, kind="stable").tolist() if c not in own][:k]
        found[row, : len(ordered)] = ordered
    return found


@pytest.mark.parametrize("matcher", [EmbeddingMatcher(), Product()], ids=["cosine", "score"])
@pytest.mark.parametrize("tile", [1, 4 * 130 * 7, None])
def test_mined_lists_are_those_of_a_full_sort(matcher, tile):
    sides, matches = encoded(), many_to_many()
    scores = matcher.score(*sides).numpy()
    of_images, of_texts = mine_negatives(matcher, sides, matches, texts=5, images=3, tile_bytes=tile)
    np.testing.assert_array_equal(of_images.numpy(), by_full_sort(scores, matches, 5))
    np.testing.assert_array_equal(of_texts.numpy(), by_full_sort(scores.T, matches.T, 3))
    assert (of_images[3] == -1).all()
    assert (of_texts[5] == -1).all()


@pytest.mark.parametrize(("columns", "k"), [(1, 1), (7, 7), (1000, 3), (1003, 10), (64, 1), (5, 9)])
def test_top_is_topk(columns, k):
    scores = torch.randn(6, columns, generator=torch.Generator().manual_seed(1))
    found, plain = top_candidates(scores, k), scores.topk(min(k, columns), dim=1)
    torch.testing.assert_close(found.scores, plain.values)
    torch.testing.assert_close(found.rows, plain.indices)


def test_bf16_lists_equal_fp32_lists_except_for_near_ties():
    sides, matches = encoded(60, 400, 256), Matches(np.arange(60), np.arange(60), (60, 400))
    scores = (unit_length(sides.images.vectors) @ unit_length(sides.texts.vectors).T).numpy()
    exact, rounded = (
        mine_negatives(EmbeddingMatcher(), sides, matches, texts=20, precision=p)[0] for p in ("fp32", "bf16")
    )
    assert len(exact) == 60
    for row in range(60):
        one, two = scores[row, exact[row]], scores[row, rounded[row]]
        np.testing.assert_allclose(one, two, atol=1e-3)  # the same but for ties below a thousandth
    assert (exact == rounded).float().mean() > 0.8


def test_lists_are_no_longer_than_the_number_of_candidates():
    sides, matches = encoded(4, 6), Matches(np.arange(4), np.arange(4), (4, 6))
    of_images, of_texts = mine_negatives(EmbeddingMatcher(), sides, matches)
    assert of_images.shape == (4, 6)
    assert (of_images[:, 5] == -1).all()
    assert (of_images[:, :5] >= 0).all()
    assert of_texts.shape == (6, 4)


def test_the_length_of_a_list_is_given_or_a_share_of_the_candidates():
    assert list_length(None, 0.002, 145_000) == 290  # the captions of Flickr30K; the paper has 300
    assert list_length(None, 0.002, 100) == 10
    assert list_length(7, 0.002, 145_000) == 7


def test_numbers_that_cannot_be_compared_are_refused():
    sides, matches = encoded(4, 6), Matches([0], [0], (4, 6))
    sides.texts.vectors[2] = torch.nan
    for matcher in (EmbeddingMatcher(), Product()):
        with pytest.raises(NotFiniteError, match="not finite"):
            mine_negatives(matcher, sides, matches)
    with pytest.raises(UserError, match="bf16 is for matchers that score by cosines"):
        mine_negatives(Product(), encoded(4, 6), matches, precision="bf16")


@pytest.fixture
def mined(tiny):
    from calligram.features.images.pixels import PixelInput
    from calligram.features.inputs import Inputs
    from calligram.features.texts.vocabulary import Vocabulary

    train = tiny.sentences("train").join_equal_texts()
    words = Vocabulary.build(train.texts.strings, 1, 20)
    torch.manual_seed(0)
    matcher = VSE(
        VSESettings(
            ImageArchitecture("cnn", channels=(4,)),
            TextArchitecture(vocabulary=len(words), word_dim=6, hidden=8, pooling="last"),
            8,
        )
    )
    found = mine_pairing(matcher, Inputs(PixelInput(16, "squash"), words), train, texts=4, images=2)
    return train, found


def test_lists_are_kept_by_ids_and_fit_a_pairing_in_any_order(mined, tmp_path):
    train, found = mined
    assert not train.matches.target(np.arange(6), np.unique(found.texts[0]))[0].max() > 0
    found.save(tmp_path / "lists")
    opened = NegativeLists.open(tmp_path / "lists")
    np.testing.assert_array_equal(opened.aligned_to(train).texts, found.texts)
    turned = train.select(np.arange(6)[::-1])
    again = opened.aligned_to(turned)
    for row in range(6):
        names = [turned.texts.ids[t] if t >= 0 else None for t in again.texts[row]]
        assert names == [train.texts.ids[t] if t >= 0 else None for t in found.texts[5 - row]]
    assert opened.truncated(2, 1).texts.shape == (6, 2)
    with pytest.raises(
        UserError, match="500 hard texts are requested, but only 4 were mined; mine more with --texts 500"
    ):
        opened.truncated(500)
    with pytest.raises(UserError, match="exists; choose another --out"):
        found.save(tmp_path / "lists")


def test_lists_of_another_collection_are_refused_by_name(mined, tiny, tmp_path):
    train, found = mined
    found.save(tmp_path / "lists")
    with pytest.raises(UserError, match=r"6 of 6 images have no list \(such as 'dev-0'\).*'train-0'"):
        NegativeLists.open(tmp_path / "lists").aligned_to(tiny.sentences("dev"))
    with pytest.raises(UserError, match=r"mined from other items.*2 of 6 listed images are unknown.*calligram mine"):
        NegativeLists.open(tmp_path / "lists").aligned_to(train.select([0, 1, 2, 4]))
    with pytest.raises(UserError, match="holds no mined negatives"):
        NegativeLists.open(tmp_path)
    (tmp_path / "lists" / "negatives.json").write_text(json.dumps({"format": "else"}))
    with pytest.raises(UserError, match="another format"):
        NegativeLists.open(tmp_path / "lists")
