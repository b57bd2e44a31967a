from __future__ import annotations

import pytest

from calligram.data.readers.entities_annotations import parse_sentence


def phrases(line: str) -> list[tuple[str, str, str]]:
    parsed = parse_sentence(line)
    return [(parsed.text[p.start : p.end], p.entity, "/".join(p.types)) for p in parsed.phrases]


def test_markup_is_removed_and_phrases_are_placed() -> None:
    line = "[/EN#18/people A child] in [/EN#19/clothing a pink dress] is climbing ."
    assert parse_sentence(line).text == "A child in a pink dress is climbing ."
    assert phrases(line) == [("A child", "18", "people"), ("a pink dress", "19", "clothing")]


def test_several_types_are_kept() -> None:
    assert phrases("[/EN#3/vehicles/scene a train]") == [("a train", "3", "vehicles/scene")]


def test_what_cannot_be_seen_has_no_entity() -> None:
    assert phrases("at [/EN#0/notvisual the camera]") == [("the camera", "", "notvisual")]


def test_punctuation_may_follow_the_closing_bracket() -> None:
    line = "[/EN#1/people A man]'s [/EN#2/clothing hat], red"
    assert parse_sentence(line).text == "A man's hat, red"
    assert phrases(line) == [("A man", "1", "people"), ("hat", "2", "clothing")]


def test_phrases_may_nest() -> None:
    assert phrases("[/EN#1/people a man in [/EN#2/clothing a hat]] runs") == [
        ("a man in a hat", "1", "people"),
        ("a hat", "2", "clothing"),
    ]


def test_brackets_of_the_text_itself_stay() -> None:
    line = "[/EN#1/other a sign [ sic ] here] and a ] alone [ x"
    assert parse_sentence(line).text == "a sign [ sic ] here and a ] alone [ x"
    assert phrases(line) == [("a sign [ sic ] here", "1", "other")]


@pytest.mark.parametrize(
    "line, fault", [("[/EN#1/people A man", "chain 1 is never closed"), ("[/EN#4/other ] x", "chain 4 has no words")]
)
def test_faults_are_told(line: str, fault: str) -> None:
    assert fault in parse_sentence(line).fault


def test_a_phrase_never_closed_reaches_to_the_end() -> None:
    assert phrases("see [/EN#1/people A man") == [("A man", "1", "people")]


def test_blanks_are_made_single() -> None:
    assert parse_sentence("[/EN#1/people  A   man ]  runs  ").text == "A man runs"
    assert phrases("[/EN#1/people  A   man ]  runs  ") == [("A man", "1", "people")]
