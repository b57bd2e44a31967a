from __future__ import annotations

import random
import re

from calligram.scenes.captions import PLACE_PHRASES, SCENE_NAMES, TIME_PHRASES, write_captions
from calligram.scenes.kinds import SETTING_THINGS, THING_KINDS, TIME_WEIGHTS
from calligram.scenes.nouns import GENERAL_NOUNS, SPECIFIC_NOUNS
from calligram.scenes.people import PERSON_KINDS
from calligram.scenes.truth import SceneView


def test_captions_have_correct_articles_spaces_and_full_stops(captions):
    for _, caption in captions:
        text = caption.text
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", text, re.IGNORECASE), text
        assert not re.search(r"  | ,|,,|\.\.", text), text
        assert re.fullmatch(r"[A-Z].*[a-z]\.", text), text


def test_verbs_agree_with_their_subjects(captions):
    for _, caption in captions:
        for span in caption.spans:
            follows = caption.text[span.end :].split(" ")[1:2]
            wrong = ("is", "stands", "runs") if len(span.things) > 1 else ("are", "stand", "run")
            assert not follows or follows[0] not in wrong, caption.text


def test_spans_are_whole_noun_phrases(captions):
    starts = r"(a|an|two|three|four|five|six)\b"
    for _, caption in captions:
        assert len(caption.spans) == len(caption.query.patterns)
        for span in caption.spans:
            words = caption.text[span.start : span.end]
            assert re.match(starts, words, re.IGNORECASE), words
            assert words == words.strip(" ,.")


def test_a_span_names_the_things_that_it_refers_to(scenes, captions):
    for row, caption in captions:
        for span in caption.spans:
            words = caption.text[span.start : span.end].lower()
            kind = scenes[row].things[span.things[0]].kind
            names = [noun for noun in (*SPECIFIC_NOUNS[kind], *GENERAL_NOUNS.get(kind, ()))]
            assert any((n.plural if len(span.things) > 1 else n.singular) in words for n in names), (words, kind)


def test_captions_of_a_scene_differ(scenes):
    for row, scene in enumerate(scenes[:30]):
        texts = [c.text for c in write_captions(random.Random(row), SceneView.of(scene), 5)]
        assert len(set(texts)) == 5


def test_the_requested_number_of_captions_is_written_even_for_a_plain_scene(scenes):
    barest = min(scenes, key=lambda s: len(s.things))
    assert len(write_captions(random.Random(0), SceneView.of(barest), 20)) == 20


def test_there_are_words_for_every_kind_setting_and_time():
    assert set(SPECIFIC_NOUNS) == {*THING_KINDS, *PERSON_KINDS}
    assert set(PLACE_PHRASES) == set(SCENE_NAMES) == set(SETTING_THINGS)
    assert set(TIME_PHRASES) == set(TIME_WEIGHTS)


def test_phrases_for_a_place_are_true_of_it():
    assert all(setting in true_of for setting, words in PLACE_PHRASES.items() for _, true_of in words)
