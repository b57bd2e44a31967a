from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageColor

from calligram.data.grounding import ImageBoxes, grounded_phrases
from calligram.data.matches import Matches
from calligram.data.pairing import Pairing
from calligram.data.sheet import SHEET_EDGE, with_boxes
from calligram.evaluation import compare
from calligram.evaluation.compare import (
    MATCH_COLOUR,
    OFFLINE_COLOUR,
    ONLINE_COLOUR,
    TRUE_COLOUR,
    ComparedScores,
    PhraseComparison,
    compare_scores,
    draw_image_comparison,
    draw_negatives,
    draw_text_comparison,
    ranked_negatives,
)
from calligram.evaluation.localization import LoadedPhrases, LocalizedPhrases
from calligram.evaluation.proposals import NO_HIT
from calligram.evaluation.recall import sign_test
from calligram.evaluation.retrieval import measure_retrieval
from calligram.features.images.region_input import ProposalFeatures
from calligram.scenes.generate import generate_scenes


def literal_rank(scores: np.ndarray, own: list[int]) -> int:
    """Rank of the best match among the items that do not match; an equal score comes first."""
    best = max(scores[item] for item in own)
    return 1 + sum(scores[item] >= best for item in range(len(scores)) if item not in own)


def some_scores() -> tuple[np.ndarray, np.ndarray, Matches]:
    rng = np.random.default_rng(0)
    image, text = np.repeat(np.arange(30), 2), np.arange(60)
    matches = Matches(np.append(image, 4), np.append(text, 9), (31, 60))  # a text of two images, an image without text
    first, second = rng.random((31, 60)).round(2), rng.random((31, 60)).round(2)
    second[image, text] += 0.2
    return first, second, matches


def test_queries_are_compared_one_by_one_as_in_the_literal_loop():
    first, second, matches = some_scores()
    found = compare_scores(first, second, matches)
    for direction, one, two, relevant in (
        (found.i2t, first, second, matches),
        (found.t2i, first.T, second.T, matches.T),
    ):
        queries = [q for q in range(len(one)) if len(relevant.texts_of(q))]
        ranks = [[literal_rank(s[q], relevant.texts_of(q).tolist()) for s in (one, two)] for q in queries]
        assert direction.queries.tolist() == queries
        assert np.stack(direction.ranks, axis=1).tolist() == ranks
        for k in (1, 5, 10):
            only_first = [q for q, (a, b) in zip(queries, ranks, strict=True) if a <= k < b]
            only_second = [q for q, (a, b) in zip(queries, ranks, strict=True) if b <= k < a]
            assert [rows.tolist() for rows in direction.found_by_one(k)] == [only_first, only_second]
        assert direction.better_ranked() == (sum(a < b for a, b in ranks), sum(b < a for a, b in ranks))
        assert direction.rank_of(queries[7]) == tuple(ranks[7])
    assert len(found.t2i.found_by_one(5)[1]) > len(found.t2i.found_by_one(5)[0]) > 0


def test_a_comparison_has_the_metrics_of_both_runs_and_their_differences():
    first, second, matches = some_scores()
    compared = compare_scores(first, second, matches)
    one, two = measure_retrieval(first, matches), measure_retrieval(second, matches)
    found = json.loads(json.dumps(compared.as_dict()))
    assert compared.rsums == pytest.approx((one.rsum, two.rsum))
    assert found["rsum"]["difference"] == pytest.approx(two.rsum - one.rsum)
    assert found["i2t"]["first"]["r5"] == pytest.approx(one.i2t.r5)
    assert found["t2i"]["difference"]["meanr"] == pytest.approx(two.t2i.meanr - one.t2i.meanr)
    for key in ("i2t", "t2i"):  # recall differs by the queries that only one run finds
        for k, only in found[key]["found_by_one"].items():
            share = 100 * (only["second"] - only["first"]) / found[key]["first"]["queries"]
            assert found[key]["difference"][f"r{k}"] == pytest.approx(share)
            assert only["p"] == sign_test(only["first"], only["second"])


@pytest.mark.parametrize("first, second", [(0, 0), (0, 5), (5, 0), (1, 9), (7, 7), (40, 80), (300, 900)])
def test_the_sign_test_is_the_exact_two_sided_binomial_test(first, second):
    total, fewer = first + second, min(first, second)
    tail = sum(math.comb(total, count) for count in range(fewer + 1)) / 2**total
    assert sign_test(first, second) == pytest.approx(min(1.0, 2 * tail))


def pixels_of(file, colour: str) -> int:
    return int((np.asarray(Image.open(file)) == np.array(ImageColor.getrgb(colour))).all(-1).sum())


@pytest.fixture
def repeated(tiny_draft, tmp_path) -> Pairing:
    """Twelve images with captions, one caption of two images."""
    from calligram.data.write_collection import write_draft

    (tmp_path / "pictures").mkdir()
    return write_draft(tiny_draft(tmp_path / "pictures", 2), tmp_path / "collection").sentences("test")


def perfect_and_reversed(pairing: Pairing) -> tuple[np.ndarray, np.ndarray]:
    own = np.zeros(pairing.matches.shape)
    own[pairing.matches.pairs()] = 1
    noise = np.random.default_rng(0).random(own.shape) / 2
    return own + noise, noise - own


@pytest.mark.parametrize("draw, side", [(draw_image_comparison, "t2i"), (draw_text_comparison, "i2t")])
def test_sheets_show_queries_that_only_one_run_finds(repeated, draw, side, tmp_path, monkeypatch):
    good, bad = perfect_and_reversed(repeated)
    runs = {"both": (good, bad), "exchanged": (bad, good), "same": (good, good)}
    seen: dict[str, list[int]] = {}
    for name, scores in runs.items():
        found = getattr(compare_scores(*scores, repeated.matches), side)
        asked = seen.setdefault(name, [])
        real = compare.DirectionComparison.rank_of
        monkeypatch.setattr(
            compare.DirectionComparison,
            "rank_of",
            lambda self, q, asked=asked, real=real: asked.append(q) or real(self, q),
        )
        draw(ComparedScores(("run one", "run two"), scores, repeated), found, tmp_path / f"{name}.png", queries=2)
        monkeypatch.undo()
        only = set(np.concatenate(found.found_by_one(5)).tolist())
        assert len(asked) == len(set(asked)) == (0 if name == "same" else 2)
        assert set(asked) <= only
    sizes = {name: Image.open(tmp_path / f"{name}.png").size for name in runs}
    assert sizes["both"] == sizes["exchanged"]
    assert sizes["both"][1] > 1.5 * sizes["same"][1]
    assert pixels_of(tmp_path / "same.png", MATCH_COLOUR) == 0
    assert pixels_of(tmp_path / "both.png", MATCH_COLOUR) > 50


def test_pairs_that_are_true_without_annotation_are_blue(repeated, tmp_path):
    every = np.indices(repeated.matches.shape).reshape(2, -1)
    known = Pairing(repeated.visuals, repeated.texts, repeated.matches, Matches(*every, repeated.matches.shape))
    scores = perfect_and_reversed(repeated)
    for pairing, file in ((known, tmp_path / "known.png"), (repeated, tmp_path / "unknown.png")):
        found = compare_scores(*scores, pairing.matches).t2i
        draw_image_comparison(ComparedScores(("one", "two"), scores, pairing), found, file)
    assert pixels_of(tmp_path / "known.png", TRUE_COLOUR) > 1000
    assert pixels_of(tmp_path / "unknown.png", TRUE_COLOUR) == 0


def test_negatives_are_ranked_as_in_the_literal_loop():
    values, own = np.array([0.1, 0.9, 0.5, 0.7, 0.3]), np.array([1, 4])
    assert ranked_negatives(values, own).tolist() == [3, 2, 0]


def test_an_anchor_is_drawn_with_its_matches_and_its_hardest_negatives(repeated, tmp_path, monkeypatch):
    shown = []
    real = compare._anchor_items
    monkeypatch.setattr(compare, "_anchor_items", lambda *given: shown.append((given, real(*given))) or shown[-1][1])
    monkeypatch.setattr(compare, "BATCH_IMAGES", 4)
    scores = np.random.default_rng(3).random(repeated.matches.shape)
    draw_negatives(scores, repeated, "a run", tmp_path / "deep" / "n.png")
    for colour in (MATCH_COLOUR, ONLINE_COLOUR, OFFLINE_COLOUR):
        assert pixels_of(tmp_path / "deep" / "n.png", colour) > 1000
    assert len(shown) == 4
    for (values, own, batch, *_), items in shown:
        assert 2 <= len(set(batch.tolist())) <= 4
        negatives = sorted(set(range(len(values))) - set(own.tolist()), key=lambda row: -values[row])
        by_colour = {colour: [item.row for item in items if item.colour == colour] for colour in
                     (MATCH_COLOUR, ONLINE_COLOUR, OFFLINE_COLOUR)}  # fmt: skip
        online = next(row for row in negatives if row in batch)
        assert set(by_colour[MATCH_COLOUR]) <= set(own.tolist())
        assert by_colour[MATCH_COLOUR][0] == max(own.tolist(), key=lambda row: values[row])
        assert by_colour[ONLINE_COLOUR] == [online]
        rest = [row for row in negatives if row != online]
        assert by_colour[OFFLINE_COLOUR] == rest[: len(by_colour[OFFLINE_COLOUR])]
        assert len(by_colour[OFFLINE_COLOUR]) >= 3
        ranks = [int(item.note.split("rank ")[1].split(",")[0]) for item in items if "rank" in item.note]
        assert ranks == [negatives.index(row) + 1 for row in (online, *by_colour[OFFLINE_COLOUR])]


def test_long_words_and_long_texts_fit_their_place(repeated, tmp_path):
    from dataclasses import replace

    strings = tuple(("x" * 300, "many short words " * 60)[number % 2] for number in range(len(repeated.texts)))
    pairing = replace(repeated, texts=replace(repeated.texts, strings=strings))
    scores = perfect_and_reversed(pairing)
    found, compared = compare_scores(*scores, pairing.matches), ComparedScores(("r" * 90, "s"), scores, pairing)
    for draw, own in ((draw_image_comparison, found.t2i), (draw_text_comparison, found.i2t)):
        draw(compared, own, tmp_path / "long.png")
        whole = np.asarray(Image.open(tmp_path / "long.png").convert("L"))
        assert whole.shape[1] <= compare.SHEET_WIDTH + 2 * SHEET_EDGE
        assert (whole[:, -SHEET_EDGE:] == 255).all()


def test_long_names_of_runs_differ_on_the_sheets_where_they_differ(repeated, tmp_path):
    scores = perfect_and_reversed(repeated)
    found = compare_scores(*scores, repeated.matches)
    for draw, own in ((draw_image_comparison, found.t2i), (draw_text_comparison, found.i2t)):
        rows = []
        for end in "ab":
            names = ("first", "runs/a-row-of-a-study-with-a-long-name-" + end)
            draw(ComparedScores(names, scores, repeated), own, tmp_path / f"{end}.png", queries=1)
            rows.append(np.asarray(Image.open(tmp_path / f"{end}.png")))
        different = np.flatnonzero((rows[0] != rows[1]).any(axis=(1, 2)))
        assert different[-1] - different[0] > 100  # in the title of the section, and in the label of the run


# Phrases


def some_phrases(scenes) -> tuple[LoadedPhrases, LoadedPhrases]:
    grounded = grounded_phrases(scenes, scenes.images_in("all"))
    proposed = ProposalFeatures(ImageBoxes(grounded.targets.boxes, grounded.targets.images), rows=None)
    sizes = np.full((len(grounded), 2), 48)
    texts = np.zeros(len(grounded), dtype=np.int64)
    loaded = LoadedPhrases(grounded.phrases, grounded.targets, None, texts, ("",) * len(grounded), proposed, sizes)
    return loaded, loaded


def test_phrases_that_only_one_run_localizes_are_drawn_with_both_boxes_and_the_truth(tmp_path, monkeypatch):
    """The first run is right for every third phrase, the second for every second one (two-branch, Fig. 2)."""
    scenes = generate_scenes(tmp_path / "scenes", images=12, size=48)
    loaded = some_phrases(scenes)
    targets = loaded[0].targets.boxes
    number = np.arange(len(targets))
    wrong = np.tile(np.array([1, 2, 9, 11], np.float32), (len(targets), 1))
    right = [number % 3 == 0, number % 2 == 0]
    found = [LocalizedPhrases(np.where(own, 1, NO_HIT), np.where(own[:, None], targets, wrong)) for own in right]
    compared = PhraseComparison.of(loaded, tuple(found))
    assert [metrics.r1 for metrics in compared.metrics] == [100 * own.mean() for own in right]
    only = [(right[0] & ~right[1]).nonzero()[0], (right[1] & ~right[0]).nonzero()[0]]
    assert [rows.tolist() for rows in compared.found_by_one(1)] == [rows.tolist() for rows in only]
    assert compared.as_dict()["difference"]["r1"] == pytest.approx(100 * (right[1].mean() - right[0].mean()))
    drawn = []
    monkeypatch.setattr(compare, "with_boxes", lambda image, boxes, colours: drawn.append(boxes) or image)
    compare.draw_phrase_comparison(scenes, ("one", "two"), compared, tmp_path / "drawn.png", phrases=4)
    for place, boxes in enumerate(drawn):
        rows = only[place // 4]
        truth, *answers = boxes
        assert any(np.array_equal(truth, targets[row]) for row in rows)
        assert [np.array_equal(truth, box) for box in answers] == [place < 4, place >= 4]
    assert len(drawn) == 8
    images = [int(loaded[0].targets.images[(targets == boxes[0]).all(1)][0]) for boxes in drawn[:4]]
    assert len(set(images)) == 4
    monkeypatch.undo()
    compare.draw_phrase_comparison(scenes, ("one", "two"), compared, tmp_path / "drawn.png", phrases=4)
    for colour in (MATCH_COLOUR, ONLINE_COLOUR, TRUE_COLOUR):
        sheet = np.asarray(Image.open(tmp_path / "drawn.png")).astype(int)
        assert (abs(sheet - ImageColor.getrgb(colour)).max(-1) < 40).sum() > 300  # lines are blurred
    with pytest.raises(ValueError, match="different phrases"):
        PhraseComparison.of((loaded[0], replace(loaded[1], phrases=loaded[1].phrases[::-1])), tuple(found))


def test_boxes_are_drawn_where_they_are_and_empty_ones_are_left_out():
    image = Image.new("RGB", (90, 60), "#ffffff")
    boxes, colours = np.array([[10, 10, 40, 30], [0, 0, 0, 0]]), (MATCH_COLOUR, TRUE_COLOUR)
    drawn = np.asarray(with_boxes(image, boxes, colours, min_side=0))
    marked = np.argwhere((drawn == ImageColor.getrgb(MATCH_COLOUR)).all(-1))
    assert marked.min(0).tolist() == [11, 11]
    assert marked.max(0).tolist() == [29, 39]
    assert not (drawn == ImageColor.getrgb(TRUE_COLOUR)).all(-1).any()
    assert (np.asarray(image) == 255).all()
    larger = np.asarray(with_boxes(image, boxes, colours, min_side=900))
    marked = np.argwhere((larger == ImageColor.getrgb(MATCH_COLOUR)).all(-1))
    assert larger.shape == (600, 900, 3)
    assert marked.min(0).tolist() == [101, 101]
