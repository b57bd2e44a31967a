from __future__ import annotations

import pytest

from calligram.data.draft import RegionRecord
from calligram.data.writing import write_collection
from calligram.errors import UserError
from calligram.recipes.pseudo_pairs import PseudoSettings, pseudo_pairs, pseudo_sentences

FINDER = PseudoSettings(source="finder")


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
    return write_collection(draft, folder / "collection")


def test_images_without_captions_are_paired_with_what_is_said_of_them(detected):
    sparse = detected.sparse(1 / 3)
    annotated = {sparse.sentences("train").visuals.ids[v] for v in sparse.sentences("train").matches.pairs()[0]}
    pairs = pseudo_pairs(sparse, FINDER)
    assert len(annotated) == 2
    assert not annotated & set(pairs.visuals.ids)
    assert set(pairs.visuals.ids) == {f"train-{n}" for n in range(5)} - annotated
    assert (pairs.matches.counts()[0] == 1).all()
    for place, name in enumerate(pairs.visuals.ids):
        said = [pairs.texts.strings[t] for t in pairs.matches.texts_of(place)]
        assert said == ["ball" if int(name[-1]) % 2 else "plate"]


def test_the_same_sentence_of_several_images_is_one_text(detected):
    pairs = pseudo_pairs(detected.sparse(1 / 6), FINDER)
    assert sorted(pairs.texts.strings) == ["ball", "plate"]
    assert len(pairs.visuals) >= 4


def test_nothing_to_pair_is_said(detected):
    with pytest.raises(UserError, match="train of tiny has no image without captions"):
        pseudo_pairs(detected, FINDER)
    with pytest.raises(UserError, match="has none of which anything is said"):
        pseudo_pairs(detected.sparse(0.5), PseudoSettings(source="finder", least=0.95))


def test_kinds_of_semantics_follow_each_other_without_saying_a_word_twice(detected, tiny_classifier):
    sparse = detected.sparse(0.5)
    visuals = sparse.unannotated("train")

    def said(*kinds):
        how = PseudoSettings(
            said=kinds, source="finder", backbone=str(tiny_classifier), label_least=0.0, naming="own", learnt_least=1
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
        how = PseudoSettings(said=("labels", "learnt"), backbone=str(tiny_classifier), learnt_least=1, shrink=1e-6)
        said = pseudo_sentences(sparse, sparse.unannotated("train"), how)
        kept = {word for string in sparse.sentences("train").texts.strings for word in string.split()}
        assert {word for sentence in said for word in sentence.split()} <= kept


def test_labels_need_a_classifier(detected):
    with pytest.raises(UserError, match="said=labels needs a classifier: give backbone="):
        pseudo_pairs(detected.sparse(0.5), PseudoSettings(said=("labels",)))
    with pytest.raises(UserError, match="said needs at least one"):
        PseudoSettings(said=())
