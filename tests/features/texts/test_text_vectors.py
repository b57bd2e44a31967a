from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch

from calligram.errors import UserError
from calligram.features.images.pixels import PixelInput
from calligram.features.inputs import Inputs
from calligram.features.store import FeatureStore
from calligram.features.texts.text_vectors import TextVectorInput, TextVectorSettings
from calligram.features.texts.word_counts import KnownWords, WordVectors
from calligram.features.texts.word_vectors import write_vectors

TEXTS = ["a red disc", "the round thing is blue", "snow", "a blue dog's red ball", "a red disc"]
WORDS = ("a", "ball", "blue", "disc", "dog", "is", "red", "round", "s", "snow", "the", "thing")


def vectors_of(*words, dim=4):
    return WordVectors(KnownWords(words), np.random.default_rng(0).normal(size=(len(words), dim)).astype(np.float32))


@pytest.fixture(scope="module")
def words():
    return vectors_of(*WORDS)


def fitted(kind, words, seed=0, **settings):
    chosen = TextVectorSettings(kind, **{"centres": 2, "pca": 3, **settings})
    return TextVectorInput.fit(TEXTS, words, chosen, seed=seed)


@pytest.fixture(scope="module", params=["mean", "tfidf", "gmm", "hglmm", "gmm+hglmm"])
def source(request, words):
    return fitted(request.param, words)


def test_a_text_is_one_vector_with_a_mask_of_ones(source):
    vectors, mask = source.texts(TEXTS)
    assert vectors.shape == (5, source.dim)
    assert vectors.dtype == torch.float32
    assert mask.tolist() == [[True]] * 5
    assert source.load(TEXTS).lengths.tolist() == [1] * 5


def test_a_saved_input_gives_the_same_result_after_reading(source, tmp_path):
    Inputs(PixelInput(16), source).save(tmp_path)
    assert not [file for file in tmp_path.iterdir() if file.suffix not in (".json", ".safetensors")]
    back = Inputs.read(tmp_path).texts
    assert isinstance(back, TextVectorInput)
    assert back == source
    assert back.fingerprint == source.fingerprint
    assert torch.equal(back.texts(TEXTS)[0], source.texts(TEXTS)[0])


def test_a_query_is_encoded_like_the_collection(source, tmp_path):
    rows = source.load(TEXTS, tmp_path)
    for row, text in enumerate(TEXTS):
        torch.testing.assert_close(rows.take(np.array([row])), source.texts([text]), rtol=1e-3, atol=1e-5)


def test_a_text_is_encoded_once(source, tmp_path, monkeypatch):
    encode, seen = type(source.vectorizer).encode, []
    monkeypatch.setattr(type(source.vectorizer), "encode", lambda self, s: (seen.extend(s), encode(self, s))[1])
    source.load(TEXTS, tmp_path)
    source.load([*TEXTS, "blue snow"], tmp_path)
    assert sorted(seen) == sorted({*TEXTS, "blue snow"})


def test_another_fit_has_another_store(words, tmp_path):
    first = fitted("mean", words)
    second = fitted("mean", WordVectors(words.known, words.vectors + 1))
    assert not torch.equal(
        first.load(TEXTS, tmp_path).take(np.arange(5))[0], second.load(TEXTS, tmp_path).take(np.arange(5))[0]
    )


@pytest.mark.parametrize("text", ["", "xyz 42 -", "🙂"])
def test_a_text_without_a_known_word_gives_zeros(source, text):
    vectors, mask = source.texts([text, "snow"])
    assert not vectors[0].any()
    assert vectors[1].any()
    assert mask.all()


def test_no_texts_give_no_vectors(source):
    assert source.texts([])[0].shape == (0, source.dim)


def test_an_unknown_word_is_split_and_unknown_parts_are_dropped():
    known = KnownWords(("dog", "s", "t", "don't"))
    assert [known.words[n] for n in known.numbers("Dog's don't 3t-xx Shirt 9")] == ["dog", "s", "don't", "t"]


def test_the_mean_vector_is_the_mean_of_unit_vectors(words):
    unit = words.vectors / np.linalg.norm(words.vectors, axis=1, keepdims=True)
    expected = (2 * unit[WORDS.index("red")] + unit[WORDS.index("snow")]) / 3
    np.testing.assert_allclose(fitted("mean", words).texts(["red zebra snow, red"])[0][0], expected, atol=1e-3)


def test_tf_idf_equals_values_computed_by_hand():
    source = TextVectorInput.fit(["a dog", "a cat", "a a dog"], None, TextVectorSettings("tfidf"))
    vectors = dict(zip(source.vectorizer.known.words, source.texts(["a dog cat cat"])[0][0].tolist(), strict=True))
    dog, cat = np.log(3 / 2), 2 * np.log(3)
    assert vectors == pytest.approx(
        {"a": 0, "dog": dog / np.hypot(dog, cat), "cat": cat / np.hypot(dog, cat)}, abs=1e-3
    )


def test_tf_idf_keeps_the_most_frequent_words():
    source = TextVectorInput.fit(["b b a", "c b", "a"], None, TextVectorSettings("tfidf", tfidf_words=2))
    assert source.vectorizer.known.words == ("b", "a")


def test_fisher_vectors_have_two_values_for_each_centre_and_dimension(words):
    assert fitted("hglmm", words, pca=0).dim == 2 * 2 * 4
    assert fitted("gmm+hglmm", words, pca=0).dim == 2 * 2 * 2 * 4
    assert fitted("hglmm", words, pca=3).dim == 3


def test_each_of_two_concatenated_mixtures_has_unit_length(words):
    both, gmm, hglmm = (fitted(kind, words, pca=0).texts(TEXTS)[0] for kind in ("gmm+hglmm", "gmm", "hglmm"))
    assert torch.equal(both, torch.cat([gmm, hglmm], dim=1))
    torch.testing.assert_close(hglmm.norm(dim=1), torch.ones(5), rtol=1e-3, atol=1e-3)


def test_only_words_of_the_training_text_are_used_in_the_fit(words):
    more = WordVectors(
        KnownWords((*WORDS, "zebra")), np.concatenate([words.vectors, np.full((1, 4), 9, dtype=np.float32)])
    )
    first, second = fitted("hglmm", words).vectorizer, fitted("hglmm", more).vectorizer
    np.testing.assert_array_equal(first.mixtures[0].centres, second.mixtures[0].centres)
    assert fitted("hglmm", more).texts(["zebra"])[0].any()


def test_the_result_depends_on_the_seed(words):
    first, again, other = (fitted("hglmm", words, seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_words_are_read_from_a_file_with_its_most_frequent_words(tmp_path):
    rows = {w: np.full(3, n + 1, dtype=np.float32) for n, w in enumerate(("The", "cat", "dog", "bird", "sits"))}
    write_vectors(rows, tmp_path / "words.txt")
    words = WordVectors.read(tmp_path / "words.txt", ["dogs sits's"], extra_words=2)
    assert words.known.words == ("cat", "sits", "the")
    assert words.vectors[:, 0].tolist() == [2, 5, 1]
    with pytest.raises(UserError, match="none of the 1 words of the texts"):
        WordVectors.read(tmp_path / "words.txt", ["zebra"])


def test_missing_word_vectors_are_reported():
    with pytest.raises(UserError, match='need word vectors: train some with "calligram words"'):
        TextVectorInput.fit(TEXTS, None, TextVectorSettings("mean"))


def test_word_dropout_is_refused(source):
    with pytest.raises(UserError, match=r"text\.word_dropout=0"):
        _ = source.mask_token


def test_processes_that_encode_the_same_texts_do_it_once(source, tmp_path, monkeypatch):
    """A process that waited for another one finds its vectors, although it had opened the store before."""
    texts = ["a dog runs", "the cat"]
    entered = FeatureStore.fill

    @contextlib.contextmanager
    def late(store):
        monkeypatch.setattr(FeatureStore, "fill", entered)
        source.load(texts, tmp_path)
        monkeypatch.setattr(type(source.vectorizer), "encode", lambda *_: pytest.fail("encoded twice"))
        with entered(store):
            yield

    monkeypatch.setattr(FeatureStore, "fill", late)
    assert len(source.load(texts, tmp_path)) == 2


def test_principal_components_move_to_a_device(words):
    source = fitted("hglmm", words, centres=2, pca=3)
    before = source.texts(["a dog runs"])[0]
    source.to(torch.device("cpu", 0))
    assert source.vectorizer.pca.device == torch.device("cpu", 0)
    assert torch.equal(source.texts(["a dog runs"])[0], before)
