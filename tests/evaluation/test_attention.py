"""Who looks where, against a transcription of the attention word by word, with matchers that were trained a little."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from calligram.data.draft import CaptionRecord, Draft, ImageRecord, PictureFile, RegionRecord
from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.evaluation.attention import (
    AttentionShares,
    attention_to_sentence,
    encode_collection_image,
    encode_picture,
    position_name,
)
from calligram.models import catalog
from calligram.models.catalog import load_matcher
from calligram.models.ensemble import Ensemble, EnsembleSettings
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.vsrn import VSRN, VSRNSettings
from calligram.recipes.catalog import find_preset
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.text import whitespace_word_spans

SMALL = (
    "batch=6", "dim=16", "text.word_dim=8", "text.hidden=16", "text.min_count=1", "text.dropout=0",
    "text.word_dropout=0",
    "ema_decay=0", "lr=0.01", "epochs=4", "optim.schedule=constant",
)  # fmt: skip
SENTENCE = "a red disc, the  round-red thing!"


def trained(collection, out, *changes, preset="scan"):
    preset = find_preset(preset)
    settings = resolve(preset.defaults, [*SMALL, *changes])
    run_preset(preset, settings, collection, out, context=RunContext(torch.device("cpu")))
    stored = load_matcher(out)
    return stored.matcher, stored.inputs


@pytest.fixture(scope="module")
def boxed(tiny_draft, tmp_path_factory):
    """Features of boxes that are called ``windows``; every third image has one less, and zeros in its place."""
    folder = tmp_path_factory.mktemp("boxed")
    (folder / "pictures").mkdir()
    draft = tiny_draft(folder / "pictures")
    values = np.random.default_rng(0).normal(size=(len(draft.images), 3, 4)).astype(np.float32)
    values[::3, 2] = 0
    np.save(folder / "windows.npy", values)
    draft.features["windows"] = [folder / "windows.npy"]
    for row, image in enumerate(draft.images):
        image.feature_rows["windows"] = row
        for number in range(3 if row % 3 else 2):
            box = (4.0 * number, 2.0, 20.0 + number, 30.0)
            draft.regions.append(RegionRecord(f"{image.id}/w{number}", image.id, box, source="windows"))
    return write_draft(draft, folder / "collection")


@pytest.fixture(scope="module")
def scan(boxed, tmp_path_factory):
    return trained(boxed, tmp_path_factory.mktemp("scan") / "run", "image.features=windows")


@pytest.fixture(scope="module")
def bfan(boxed, tmp_path_factory, tiny_bert):
    """With a frozen encoder of word pieces."""
    out = tmp_path_factory.mktemp("bfan") / "run"
    encoder = (f"text.encoder={tiny_bert}", "image.features=windows")
    return trained(boxed, out, *encoder, preset="bfan")


def literal(looking, context, temperature, focal):
    """Shares (L, C) of what each of L looks at among C: scan's release, and bfan's focus, in loops.

    Products are clipped with a slope of 0.1 and divided by their length over all that look; a softmax over the context
    follows; bfan keeps those above the mean and makes them sum to one again.
    """
    products = [[float(a @ b) for b in context] for a in looking]
    clipped = [[p if p > 0 else 0.1 * p for p in row] for row in products]
    shares = []
    for row in range(len(looking)):
        values = []
        for column in range(len(context)):
            length = math.sqrt(sum(clipped[other][column] ** 2 for other in range(len(looking)))) + 1e-8
            values.append(math.exp(temperature * clipped[row][column] / length))
        values = [v / sum(values) for v in values]
        if focal:
            kept = [v if v * len(values) > sum(values) else 0.0 for v in values]
            values = [v / sum(kept) for v in kept]
        shares.append(values)
    return shares


def slowly(matcher, inputs, seen, spelt, temperature, focal):
    """Shares of whole words; ``spelt`` says of which of the parts each word consists."""
    with torch.no_grad():
        texts = matcher.encode_texts(*inputs.texts.texts([SENTENCE]))
    regions = [r.double() for r, real in zip(seen.encoded.parts[0], seen.encoded.mask[0], strict=True) if real]
    parts = [p.double() for p in texts.parts[0]]
    by_part, by_region = literal(parts, regions, temperature, focal), literal(regions, parts, temperature, focal)
    words = [[sum(by_part[p][r] for p in own) / len(own) for r in range(len(regions))] for own in spelt]
    return words, [[sum(row[p] for p in own) for own in spelt] for row in by_region]


@pytest.mark.parametrize(("row", "count"), [("train-0", 2), ("train-1", 3)])
def test_shares_of_scan_are_those_of_the_loop(scan, boxed, row, count):
    """Parts are the mark of the beginning, a red disc the round red thing, and that of the end."""
    matcher, inputs = scan
    seen = encode_collection_image(matcher, inputs, boxed, row)
    found = attention_to_sentence(matcher, inputs, seen, SENTENCE)
    words, regions = slowly(matcher, inputs, seen, [[1], [2], [3], [4], [5, 6], [7]], 9.0, focal=False)
    assert found.words.shape == (6, count)
    np.testing.assert_allclose(found.words, words, atol=1e-5)
    np.testing.assert_allclose(found.regions, regions, atol=1e-5)
    np.testing.assert_allclose(found.words.sum(1), 1, atol=1e-5)
    assert found.rest.max() > 0.01
    np.testing.assert_allclose(found.rest, 1 - np.sum(regions, axis=1), atol=1e-5)
    assert found.scored == {"words"}


def test_shares_of_bfan_are_those_of_the_loop_with_pieces_joined(bfan, boxed):
    matcher, inputs = bfan
    pieces = inputs.texts.pieces
    spelt = pieces.tokenizer.convert_ids_to_tokens(pieces.encode([SENTENCE])[0])
    assert spelt == ["[CLS]", "a", "red", "disc", "[UNK]", "the", "round", "[UNK]", "red", "thing", "[UNK]", "[SEP]"]
    seen = encode_collection_image(matcher, inputs, boxed, "train-1")
    found = attention_to_sentence(matcher, inputs, seen, SENTENCE)
    words, regions = slowly(matcher, inputs, seen, [[1], [2], [3], [5], [6, 7, 8], [9]], 20.0, focal=True)
    np.testing.assert_allclose(found.words, words, atol=1e-4)
    np.testing.assert_allclose(found.regions, regions, atol=1e-4)
    assert found.scored == {"words", "regions"}
    assert len(whitespace_word_spans(SENTENCE)) == 6


def test_regions_lie_where_the_collection_has_them(scan, boxed, stored_tiny):
    matcher, inputs = scan
    found = attention_to_sentence(matcher, inputs, encode_collection_image(matcher, inputs, boxed, "train-1"), SENTENCE)
    expected = np.array([[0, 2, 20, 30], [4, 2, 21, 30], [8, 2, 22, 30]]) / np.array([40, 32, 40, 32])
    np.testing.assert_allclose(found.boxes, expected, atol=1e-6)
    assert found.region_at(0.05, 0.5) == 0
    assert found.region_at(0.3, 0.5) == 2  # within all three, of which it is the smallest
    assert found.region_at(0.9, 0.5) is None
    with pytest.raises(UserError, match="has no image 'nobody'; an example of an id is 'train-0'"):
        encode_collection_image(matcher, inputs, boxed, "nobody")
    with pytest.raises(UserError, match="unknown stored feature 'windows'"):
        encode_collection_image(matcher, inputs, stored_tiny, "train-1")


@pytest.mark.parametrize(("fit", "left"), [("squash", 0), ("crop", 4 / 40)])
def test_cells_of_a_new_picture_and_of_a_collections_are_the_same(tiny, tmp_path, fit, left):
    import transformers

    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(**shape, image_size=32, patch_size=16)
    transformers.ViTModel(config).save_pretrained(tmp_path / "backbone")
    changes = (f"image.backbone={tmp_path / 'backbone'}", f"image.fit={fit}", "image.size=32", "epochs=1")
    matcher, inputs = trained(tiny, tmp_path / "run", *changes)
    picture = tiny.pictures.open(3)
    found = attention_to_sentence(matcher, inputs, encode_picture(matcher, inputs, picture), SENTENCE)
    stored = attention_to_sentence(matcher, inputs, encode_collection_image(matcher, inputs, tiny, "train-3"), SENTENCE)
    np.testing.assert_allclose(found.words, stored.words)
    assert found.words.shape == (6, 4)
    assert found.boxes[0].tolist() == pytest.approx([left, 0, 0.5, 0.5])
    assert found.boxes[3].tolist() == pytest.approx([0.5, 0.5, 1 - left, 1])
    assert found.region_at(0.3, 0.7) == 2
    assert found.region_at(0.01, 0.5) == (None if left else 0)


def test_words_that_were_cut_off_have_no_attention(scan, boxed):
    matcher, inputs = scan
    seen = encode_collection_image(matcher, inputs, boxed, "train-1")
    found = attention_to_sentence(matcher, inputs, seen, "disc " * 70)
    assert found.words.shape == (70, 3)
    assert (found.words[:60].sum(1) > 0.99).all()
    assert not found.words[60:].any()
    assert found.as_json()["words"][60:] == [None] * 10


def test_attention_of_an_ensemble_is_the_mean_of_its_members(scan, boxed):
    matcher, inputs = scan
    shape = json.loads(json.dumps(catalog.describe(matcher)))
    shape["settings"]["direction"] = "i2t"
    other = catalog.build(shape).eval()
    joined = Ensemble(EnsembleSettings(tuple(json.dumps(catalog.describe(m)) for m in (matcher, other)))).eval()
    for member, own in zip(joined.members, (matcher, other), strict=True):
        member.load_state_dict(own.state_dict())
    found, one, two = (
        attention_to_sentence(m, inputs, encode_collection_image(m, inputs, boxed, "train-0"), SENTENCE)
        for m in (joined, matcher, other)
    )
    np.testing.assert_allclose(found.words, (one.words + two.words) / 2, atol=1e-5)
    np.testing.assert_allclose(found.regions, (one.regions + two.regions) / 2, atol=1e-5)
    assert found.scored == {"words", "regions"}
    assert np.abs(one.words - two.words).max() > 1e-3


def test_a_matcher_of_single_vectors_has_no_attention(scan, boxed):
    inputs = scan[1]
    vsrn = VSRN(
        VSRNSettings(
            ImageArchitecture(feature_dim=4),
            TextArchitecture(pooling="last", vocabulary=len(inputs.texts), word_dim=6, hidden=8),
            8,
            layers=1,
        )
    ).eval()
    assert vsrn.attends == frozenset()
    assert (
        attention_to_sentence(vsrn, inputs, encode_collection_image(vsrn, inputs, boxed, "train-1"), SENTENCE) is None
    )


def test_by_hand():
    """Two regions, one word; the left region gives it a quarter, the right one all."""
    boxes = np.array([[0, 0, 0.3, 1], [0.5, 0, 1, 0.3]], dtype=np.float32)
    looks = AttentionShares(boxes, np.array([[0.25, 0.75]]), np.array([[0.25], [1.0]]), frozenset(("words",)))
    assert looks.rest.tolist() == [0.75, 0]
    assert [position_name(box) for box in boxes] == ["left", "upper right"]
    assert looks._replace(boxes=None).region_at(0.1, 0.1) is None
    assert looks.as_json()["words"] == [[0.25, 0.75]]


def test_words_are_trained_to_attend_to_the_region_they_name(tmp_path):
    """Three regions of different colours, in any order, and a caption that names them: a third would be chance."""
    draft, random = Draft("colours"), np.random.default_rng(0)
    colours, looks = ("red", "green", "blue", "white", "black", "pink"), np.random.default_rng(1).normal(size=(6, 8))
    shown = []
    Image.new("RGB", (8, 8)).save(tmp_path / "p.png")
    for split, count in (("train", 120), ("dev", 20), ("test", 40)):
        for number in range(count):
            id, own = f"{split}-{number}", random.permutation(6)[:3]
            draft.images.append(
                ImageRecord(id, PictureFile(tmp_path / "p.png"), split, feature_rows={"looks": len(shown)})
            )
            text = "a " + " and a ".join(colours[colour] for colour in random.permutation(own))
            draft.captions.append(CaptionRecord(f"{id}#0", text, (id,)))
            shown.append(own)
    values = looks[np.array(shown)] + 0.1 * random.normal(size=(len(shown), 3, 8))
    np.save(tmp_path / "looks.npy", values.astype(np.float32))
    draft.features["looks"] = [tmp_path / "looks.npy"]
    collection = write_draft(draft, tmp_path / "collection")
    matcher, inputs = trained(collection, tmp_path / "run", "image.features=looks", "batch=20", "epochs=10")
    named = []
    for row, text in zip(range(140, 180), collection.column("captions", "text")[140:], strict=True):
        found = attention_to_sentence(
            matcher, inputs, encode_collection_image(matcher, inputs, collection, f"test-{row - 140}"), text
        )
        for word, (start, end) in enumerate(whitespace_word_spans(text)):
            if text[start:end] in colours:
                named.append(found.words[word, shown[row].tolist().index(colours.index(text[start:end]))])
    assert np.mean(named) > 0.55
