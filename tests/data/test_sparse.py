from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calligram.data.collection import Collection
from calligram.data.draft import CaptionRecord, Draft, ImageRecord, PhraseRecord, RegionRecord
from calligram.data.write_collection import write_draft
from calligram.errors import UserError

SHARES = st.floats(0, 1, allow_nan=False)
SEEDS = st.integers(0, 2**32)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Images of train with 0 to 6 captions, and a few that two images share; dev and test have two each."""
    draft = Draft("uneven")
    for split, count in (("train", 35), ("dev", 3), ("test", 3)):
        for number in range(count):
            image = f"{split}-{number}"
            draft.images.append(ImageRecord(image, None, split))
            draft.regions.append(RegionRecord(f"{image}/box", image, (0, 0, 4, 4)))
            for turn in range(number % 7 if split == "train" else 2):
                caption = f"{image}#{turn}"
                draft.captions.append(CaptionRecord(caption, f"word{len(draft.captions)} here", (image,)))
                draft.phrases.append(PhraseRecord(f"{caption}/p", caption, 0, 4, regions=(f"{image}/box",)))
    for first, second in ((1, 2), (3, 8), (9, 10)):
        draft.captions.append(CaptionRecord(f"both-{first}", "of two", (f"train-{first}", f"train-{second}")))
    draft.captions.append(CaptionRecord("across", "of train and dev", ("train-4", "dev-0")))
    everything = [(i, c) for i in range(len(draft.images)) for c in range(len(draft.captions)) if (i + c) % 5 == 0]
    draft.also_true = np.array(everything, dtype=np.int64)
    return write_draft(draft, tmp_path_factory.mktemp("uneven") / "collection")


def pairs(collection: Collection, split: str = "train") -> set[tuple[str, str]]:
    """Matching pairs by id."""
    found = collection.sentences(split)
    return {
        (found.visuals.ids[v], found.texts.ids[t])
        for v, t in zip(*(side.tolist() for side in found.matches.pairs()), strict=True)
    }


@settings(max_examples=60, deadline=None)
@given(st.tuples(SHARES, SHARES), st.tuples(st.integers(1, 8), st.integers(1, 8)), SEEDS)
def test_levels_of_one_seed_are_nested_by_images_and_by_captions(uneven, shares, counts, seed):
    (few, many), (short, long) = sorted(shares), sorted(counts)
    small = pairs(uneven.sparse(few, short, seed))
    assert small <= pairs(uneven.sparse(many, short, seed)) <= pairs(uneven.sparse(many, None, seed))
    assert small <= pairs(uneven.sparse(few, long, seed)) <= pairs(uneven.sparse(few, None, seed)) <= pairs(uneven)


@settings(max_examples=40, deadline=None)
@given(SHARES, st.none() | st.integers(1, 8), SEEDS)
def test_the_requested_numbers_of_images_and_captions_are_kept_and_all_images_stay(uneven, share, captions, seed):
    before, after = {}, {}
    sparse = uneven.sparse(share, captions, seed)
    for found, collection in ((before, uneven), (after, sparse)):
        for image, caption in pairs(collection):
            found.setdefault(image, set()).add(caption)
    assert len(after) == round(share * len(before))
    for image, kept in after.items():
        assert len(kept) == min(len(before[image]), captions or 100)
    assert sparse.sentences("train").visuals.ids == uneven.sentences("train").visuals.ids
    assert set(sparse.unannotated("train").ids) == set(uneven.sentences("train").visuals.ids) - set(after)
    for split in ("dev", "test"):
        assert pairs(sparse, split) == pairs(uneven, split)


@settings(max_examples=20, deadline=None)
@given(SHARES, st.none() | st.integers(1, 3), SEEDS)
def test_no_table_has_a_removed_caption(uneven, share, captions, seed):
    sparse = uneven.sparse(share, captions, seed)
    allowed = {caption for split in ("train", "dev", "test") for _, caption in pairs(sparse, split)}
    assert set(sparse.column("captions", "id")) == allowed
    ids = sparse.column("captions", "id")
    for table in ("matches", "also_true", "phrases"):
        assert set(sparse.numbers(table, "caption")) <= set(range(len(ids)))
    texts = dict(zip(uneven.column("captions", "id"), uneven.column("captions", "text"), strict=True))
    assert sparse.column("captions", "text") == [texts[i] for i in ids]
    for phrase, caption in zip(sparse.column("phrases", "id"), sparse.numbers("phrases", "caption"), strict=True):
        assert phrase == f"{ids[caption]}/p"
    regions = sparse.column("regions", "id")
    for phrase, region in zip(
        sparse.numbers("groundings", "phrase"), sparse.numbers("groundings", "region"), strict=True
    ):
        assert sparse.column("phrases", "id")[phrase].split("#")[0] == regions[region].split("/")[0]
    true = {(i, uneven.column("captions", "id")[c]) for i, c in zip(*_true(uneven), strict=True)}
    assert {(i, ids[c]) for i, c in zip(*_true(sparse), strict=True)} == {(i, c) for i, c in true if c in allowed}


def _true(collection: Collection) -> tuple[list[int], list[int]]:
    return collection.numbers("also_true", "image").tolist(), collection.numbers("also_true", "caption").tolist()


def test_a_shared_caption_is_lost_by_one_image_and_kept_by_the_other(uneven):
    kept = [pairs(uneven.sparse(0.5, None, seed)) for seed in range(20)]
    both = {("train-3", "both-3"), ("train-8", "both-3")}
    assert any(len(found & both) == 1 for found in kept)
    assert any(("train-4", "across") not in found for found in kept)
    assert all(("dev-0", "across") in pairs(uneven.sparse(0.5, None, seed), "dev") for seed in range(3))


def test_a_sparsity_level_changes_name_and_fingerprint(uneven):
    levels = [uneven, uneven.sparse(0.5), uneven.sparse(0.5, 1), uneven.sparse(0.25, 1), uneven.sparse(0.5, 1, seed=1)]
    assert len({level.fingerprint for level in levels}) == len({level.name for level in levels}) == 5
    assert levels[2].name == "uneven (50% of images x 1 caption, seed 0)"
    assert uneven.sparse() is uneven
    assert uneven.sparse(0.5).fingerprint == levels[1].fingerprint
    assert levels[2].manifest["counts"]["captions"] == len(levels[2].table("captions"))


def test_other_seeds_choose_other_images(uneven):
    assert pairs(uneven.sparse(0.5, 1, seed=0)) != pairs(uneven.sparse(0.5, 1, seed=1))


def test_a_sparse_view_can_be_made_sparser(uneven):
    once = uneven.sparse(0.5, None)
    assert pairs(once.sparse(1.0, 1)) == pairs(uneven.sparse(0.5, 1))


@pytest.mark.parametrize(
    ("given", "message"),
    [({"images": 1.5}, "from 0 to 1, got 1.5"), ({"captions": 0}, "at least 1, or None for all, got 0")],
)
def test_shares_and_counts_out_of_range_are_refused(uneven, given, message):
    with pytest.raises(UserError, match=message):
        uneven.sparse(**given)


def test_unannotated_gives_the_images_without_captions(uneven, tiny):
    assert uneven.unannotated("train").ids == tuple(f"train-{n}" for n in range(0, 35, 7))
    assert len(tiny.unannotated("train")) == 0
