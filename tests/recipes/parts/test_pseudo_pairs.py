from __future__ import annotations

import numpy as np
import pytest

from calligram.data.draft import RegionRecord
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.features.pseudo.image_words import ImageWords
from calligram.features.pseudo.sentences import PseudoSettings, draw_sentences, pseudo_sentences
from calligram.recipes.parts.pseudo_pairs import make_pseudo_pairs

FINDER = PseudoSettings(region_source="finder")


@pytest.fixture(scope="module")
def detected(tiny_draft, tmp_path_factory):
    """The tiny collection with what a detector says of every image but one."""
    folder = tmp_path_factory.mktemp("detected")
    (folder / "pictures").mkdir()
    draft = tiny_draft(folder / "pictures")
    for number, image in enumerate(draft.images):
        score = 0.1 if number % 6 == 5 else 0.9
        label = "ball" if number % 2 else "plate"
        draft.regions.append(RegionRecord(f"{image.id}/x", image.id, (1, 1, 9, 9), "finder", label, "", score))
    return write_draft(draft, folder / "collection")


def test_images_without_captions_are_paired_with_pseudo_sentences(detected):
    sparse = detected.sparse(1 / 3)
    annotated = {sparse.sentences("train").visuals.ids[v] for v in sparse.sentences("train").matches.pairs()[0]}
    pairs = make_pseudo_pairs(sparse, FINDER)
    assert len(annotated) == 2
    assert not annotated & set(pairs.visuals.ids)
    assert set(pairs.visuals.ids) == {f"train-{n}" for n in range(5)} - annotated
    assert (pairs.matches.counts()[0] == 1).all()
    for place, name in enumerate(pairs.visuals.ids):
        said = [pairs.texts.strings[t] for t in pairs.matches.texts_of(place)]
        assert said == ["ball" if int(name[-1]) % 2 else "plate"]


def test_the_same_sentence_of_several_images_is_one_text(detected):
    pairs = make_pseudo_pairs(detected.sparse(1 / 6), FINDER)
    assert sorted(pairs.texts.strings) == ["ball", "plate"]
    assert len(pairs.visuals) >= 4


def test_missing_pseudo_sentences_are_refused(detected):
    with pytest.raises(UserError, match="train of tiny has no image without captions"):
        make_pseudo_pairs(detected, FINDER)
    with pytest.raises(UserError, match=r"none of 3 images of split train .* gets a pseudo-sentence"):
        make_pseudo_pairs(detected.sparse(0.5), PseudoSettings(region_source="finder", min_score=0.95))


def test_sources_are_joined_in_order_without_repeated_words(detected, tiny_classifier):
    sparse = detected.sparse(0.5)
    visuals = sparse.unannotated("train")

    def said(*kinds):
        how = PseudoSettings(
            sources=kinds,
            region_source="finder",
            backbone=str(tiny_classifier),
            min_label_score=0.0,
            naming="own",
            min_word_images=1,
        )
        return [sentence.split() for sentence in pseudo_sentences(sparse, visuals, how)]

    regions, labels, learnt, joined = (
        said("regions"),
        said("labels"),
        said("learnt"),
        said("regions", "labels", "learnt"),
    )
    for parts in zip(regions, labels, learnt, joined, strict=True):
        assert parts[3] == list(dict.fromkeys(word for part in parts[:3] for word in part))
    assert any(learnt)


def test_learnt_words_and_names_come_from_captions_that_are_kept(detected, tiny_classifier):
    for seed in range(3):
        sparse = detected.sparse(0.5, seed=seed)
        how = PseudoSettings(
            sources=("labels", "learnt"), backbone=str(tiny_classifier), min_word_images=1, shrink=1e-6
        )
        said = pseudo_sentences(sparse, sparse.unannotated("train"), how)
        kept = {word for string in sparse.sentences("train").texts.strings for word in string.split()}
        assert {word for sentence in said for word in sentence.split()} <= kept


def test_labels_need_a_classifier(detected):
    with pytest.raises(UserError, match=r"sources=labels needs a classifier: give pseudo\.backbone="):
        make_pseudo_pairs(detected.sparse(0.5), PseudoSettings(sources=("labels",)))
    with pytest.raises(UserError, match="sources needs at least one"):
        PseudoSettings(sources=())


def test_several_sentences_have_a_few_words_each_in_their_order(detected):
    how = PseudoSettings(sentences=4, words=2)
    said = draw_sentences("red dog brown grass man", "train-0", how)
    assert 1 < len(said) <= 4
    assert len(set(said)) == len(said)
    order = ["red", "dog", "brown", "grass", "man"]
    for sentence in said:
        places = [order.index(word) for word in sentence.split()]
        assert len(places) == 2
        assert places == sorted(places)
    assert said == draw_sentences("red dog brown grass man", "train-0", how)
    assert said != draw_sentences("red dog brown grass man", "train-1", how)
    assert draw_sentences("dog", "train-0", how) == ["dog"]
    assert draw_sentences("", "train-0", how) == []
    assert draw_sentences("red dog brown", "train-0", PseudoSettings()) == ["red dog brown"]


def test_captions_of_the_most_similar_images_are_added(detected, tiny_classifier):
    sparse = detected.sparse(0.5)
    how = PseudoSettings(region_source="finder", backbone=str(tiny_classifier), neighbours=2)
    pairs = make_pseudo_pairs(sparse, how)
    captions = set(sparse.sentences("train").texts.strings)
    words = ImageWords.load(str(tiny_classifier))
    captioned = sparse.sentences("train")
    described = np.flatnonzero(captioned.matches.counts()[0])
    theirs, own = (words.vectors(v).double().numpy() for v in (captioned.visuals.select(described), pairs.visuals))
    for place, vector in enumerate(own):
        said = {pairs.texts.strings[t] for t in pairs.matches.texts_of(place)}
        cosines = [vector @ other / np.linalg.norm(vector) / np.linalg.norm(other) for other in theirs]
        nearest = [described[n] for n in np.argsort(cosines)[::-1][:2]]
        expected = {captioned.texts.strings[captioned.matches.texts_of(image)[0]] for image in nearest}
        assert said & captions == expected
    with pytest.raises(UserError, match="neighbours needs image vectors"):
        make_pseudo_pairs(sparse, PseudoSettings(region_source="finder", neighbours=1))


def test_an_image_is_not_its_own_neighbour(detected, tiny_classifier):
    words, captioned = ImageWords.load(str(tiny_classifier)), detected.sentences("train")
    found = words.neighbour_captions(captioned.visuals, captioned, len(captioned.visuals))
    texts = [captioned.texts.strings[captioned.matches.texts_of(i)[0]] for i in range(len(captioned.visuals))]
    for place, said in enumerate(found):
        assert sorted(said) == sorted(texts[:place] + texts[place + 1 :])
