"""Clusters of a library: groups that are there are found, named by captions or by the matcher, and drawn apart."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from calligram.data.draft import CaptionRecord, Draft, ImageRecord, PictureFile
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.search.indexing.run import index_source
from calligram.search.library.library import Library
from calligram.search.library.matchers import LibraryMatchers, load_encoders
from calligram.search.query import clusters
from calligram.search.query.clusters import (
    caption_words,
    cluster_library,
    k_means,
    map_circles,
    matcher_words,
    nearest_centres,
    places_in_circle,
)
from calligram.vectors import unit_rows

COLOURS = {"red": (220, 20, 20), "green": (20, 200, 30), "blue": (20, 30, 220)}


@pytest.fixture(scope="module")
def coloured(small_run, tmp_path_factory):
    """Twelve pictures of each of three colours; captions name the colour, and all of them have the word "picture"."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("coloured")
    draft, rng = Draft("colours"), np.random.default_rng(0)
    for name, colour in COLOURS.items():
        for number in range(12):
            file = folder / f"{name}-{number}.png"
            pixels = np.clip(np.array(colour) + rng.normal(0, 12, (24, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(file)
            draft.images.append(ImageRecord(file.stem, PictureFile(file), "test"))
            draft.captions.append(CaptionRecord(f"{file.stem}#", f"a picture of {name} paper", (file.stem,)))
    collection = write_draft(draft, folder / "collection").folder
    index_source(LibraryMatchers.load(small_run), collection, folder / "library")
    library = Library.open(folder / "library")
    encoder, _ = load_encoders(library.folder, library.manifest)
    return SimpleNamespace(folder=folder, library=library, encoder=encoder)


def colour_of(library: Library, id: str) -> str:
    return library.item(id).name.partition("-")[0]


def test_groups_are_found_and_named_by_their_captions(coloured):
    found = cluster_library(coloured.library, coloured.encoder, count=3)
    assert [cluster.size for cluster in found.clusters] == [12, 12, 12]
    assert (found.items, found.sampled) == (36, 36)
    for cluster in found.clusters:
        members = found.members(coloured.library, cluster.number, 36)
        colours = {colour_of(coloured.library, hit.id) for hit in members}
        assert len(members) == 12
        assert colours == {cluster.words[0]} == {colour_of(coloured.library, id) for id in cluster.examples}
        assert cluster.named_by == "captions"
        assert [hit.score for hit in members] == sorted((hit.score for hit in members), reverse=True)
    assert len({cluster.name for cluster in found.clusters}) == 3


def test_equal_seeds_give_equal_clusters(coloured):
    first, second = (cluster_library(coloured.library, coloured.encoder, count=5, seed=3) for _ in range(2))
    assert first.clusters == second.clusters
    assert first.key == second.key
    assert first.key != cluster_library(coloured.library, coloured.encoder, count=4, seed=3).key


def test_a_sample_estimates_the_sizes_of_the_whole(coloured, monkeypatch):
    monkeypatch.setattr(clusters, "MAX_SAMPLED_PICTURES", 18)
    found = cluster_library(coloured.library, coloured.encoder, count=3)
    assert (found.items, found.sampled) == (36, 18)
    assert sum(cluster.size for cluster in found.clusters) == pytest.approx(36, abs=3)
    # Members come from the whole library: all pictures are in exactly one cluster.
    members = [hit.id for cluster in found.clusters for hit in found.members(coloured.library, cluster.number, 36)]
    assert sorted(members) == sorted(row["id"] for row in coloured.library.rows())


def test_without_captions_the_matcher_names(indexed):
    library = Library.open(indexed)
    encoder, _ = load_encoders(library.folder, library.manifest)
    found = cluster_library(library, encoder, count=2)
    known = set(encoder.inputs.texts.vocabulary.words)
    assert all(cluster.named_by == "matcher" and set(cluster.words) <= known for cluster in found.clusters)
    # The first word of a name is the one whose score stands out most.
    words = clusters.vocabulary_words(encoder)
    scores = np.stack([unit_rows(encoder.text_vectors([word]))[0] @ found.centres.T for word in words])
    stands_out = scores - scores.mean(axis=1, keepdims=True)
    for column, cluster in enumerate(found.clusters):
        assert cluster.words[0] == words[int(stands_out[:, column].argmax())]


def test_a_matcher_that_reads_any_word_chooses_from_the_list():
    texts = SimpleNamespace(vocabulary=None, is_known=lambda word: word != "dog")
    words = clusters.vocabulary_words(SimpleNamespace(inputs=SimpleNamespace(texts=texts)))
    assert len(words) == len(set(words)) > 300
    assert "cat" in words
    assert "dog" not in words


def test_matcher_words_leave_out_forms_of_a_word():
    table = {"dog": [1.0, 0, 0], "dogs": [0.99, 0, 0.14], "snow": [0.9, 0.1, 0.42], "sand": [0, 1, 0]}

    class Encoder:
        inputs = SimpleNamespace(texts=SimpleNamespace(vocabulary=SimpleNamespace(words=("<pad>", *table))))

        def text_vectors(self, words):
            return np.array([table[word] for word in words], np.float32)

    found = matcher_words(Encoder(), np.eye(2, 3, dtype=np.float32))
    assert found[0][:2] == ["dog", "snow"]
    assert "dogs" not in found[0]
    assert found[1][0] == "sand"


def test_words_that_all_captions_have_name_nothing():
    captions = [("a dog on sand",)] * 6 + [("a cat on sand",)] * 6 + [()] * 3
    labels = np.array([0] * 6 + [1] * 6 + [2] * 3)
    dog, cat, none = caption_words(captions, labels, 3)
    assert (dog, cat, none) == (["dog"], ["cat"], [])
    assert set(caption_words(captions[:6], labels[:6], 1)[0]) == {"dog", "sand"}  # nothing to compare with


def test_k_means_is_nearest_centre_for_every_vector():
    vectors = unit_rows(np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32))
    centres, labels = k_means(vectors, 6, 0)
    assert (labels == np.argmax([[v @ c for c in centres] for v in vectors], axis=1)).all()
    assert (nearest_centres(vectors, centres) == labels).all()
    sizes = np.bincount(labels)
    assert (sizes == -np.sort(-sizes)).all()
    same = np.repeat(vectors[:2], 5, axis=0)
    assert len(k_means(same, 4, 0)[0]) == 2


@pytest.mark.parametrize("count", [1, 2, 3, 64])
def test_circles_of_the_map_do_not_overlap(count):
    rng = np.random.default_rng(count)
    sizes = rng.pareto(1.0, count) + 0.1
    places, radii, height = map_circles(rng.normal(size=(count, 2)), np.sqrt(sizes / sizes.sum()))
    distances = np.linalg.norm(places[:, None] - places[None], axis=2) + 10 * np.eye(count)
    assert (distances >= 0.999 * (radii[:, None] + radii[None])).all()
    low, high = (places - radii[:, None]).min(axis=0), (places + radii[:, None]).max(axis=0)
    assert np.allclose([*low, *high], [0, 0, 1, height], atol=1e-4)


def test_pictures_stay_in_their_circle_and_apart():
    values = np.random.default_rng(0).normal(size=(37, 2))
    places = places_in_circle(values)
    assert np.linalg.norm(places, axis=1).max() < 0.9
    distances = np.linalg.norm(places[:, None] - places[None], axis=2) + np.eye(37)
    assert distances.min() > 0.15
    assert np.corrcoef(places[:, 0], values[:, 0])[0, 1] > 0.8
    assert places_in_circle(np.zeros((1, 2))).shape == (1, 2)


@pytest.mark.parametrize("count", [0, 501])
def test_a_number_of_clusters_out_of_range_is_refused(coloured, count):
    with pytest.raises(UserError, match="from 1 to 500"):
        cluster_library(coloured.library, coloured.encoder, count=count)


def test_members_of_an_unknown_cluster_are_refused(coloured):
    found = cluster_library(coloured.library, coloured.encoder, count=2)
    with pytest.raises(UserError, match="1 to 2"):
        found.members(coloured.library, 3, 5)


def test_the_command_prints_names_sizes_and_examples(coloured, calligram):
    done = calligram("clusters", coloured.folder / "library", "--count", 3)
    assert done.returncode == 0, done.stderr
    for name in COLOURS:
        assert any(f" 12  {name} " in line for line in done.stdout.splitlines()), done.stdout
    printed = json.loads(calligram("clusters", coloured.folder / "library", "--count", 3, "--json").stdout)
    assert [cluster["size"] for cluster in printed["clusters"]] == [12, 12, 12]
    assert len(printed["clusters"][0]["examples"]) == 8
    assert calligram("clusters", coloured.folder / "library", "--count", 900).returncode == 2
