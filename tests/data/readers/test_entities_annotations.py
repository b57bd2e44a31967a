from __future__ import annotations

import pytest

from calligram.data.draft import Problems
from calligram.data.readers.entities_annotations import align_spans, pair_sentences, parse_annotation, parse_sentence


def phrases(line: str) -> list[tuple[str, str, str]]:
    parsed = parse_sentence(line)
    return [(parsed.text[p.start : p.end], p.entity, "/".join(p.types)) for p in parsed.phrases]


def test_markup_is_removed_and_phrases_get_positions() -> None:
    line = "[/EN#18/people A child] in [/EN#19/clothing a pink dress] is climbing ."
    assert parse_sentence(line).text == "A child in a pink dress is climbing ."
    assert phrases(line) == [("A child", "18", "people"), ("a pink dress", "19", "clothing")]


def test_several_types_are_kept() -> None:
    assert phrases("[/EN#3/vehicles/scene a train]") == [("a train", "3", "vehicles/scene")]


def test_a_phrase_that_is_not_visible_has_no_entity() -> None:
    assert phrases("at [/EN#0/notvisual the camera]") == [("the camera", "", "notvisual")]


def test_punctuation_may_follow_the_closing_bracket() -> None:
    line = "[/EN#1/people A man]'s [/EN#2/clothing hat], red"
    assert parse_sentence(line).text == "A man's hat, red"
    assert phrases(line) == [("A man", "1", "people"), ("hat", "2", "clothing")]


def test_phrases_can_be_nested() -> None:
    assert phrases("[/EN#1/people a man in [/EN#2/clothing a hat]] runs") == [
        ("a man in a hat", "1", "people"),
        ("a hat", "2", "clothing"),
    ]


def test_brackets_of_the_text_are_kept() -> None:
    line = "[/EN#1/other a sign [ sic ] here] and a ] alone [ x"
    assert parse_sentence(line).text == "a sign [ sic ] here and a ] alone [ x"
    assert phrases(line) == [("a sign [ sic ] here", "1", "other")]


@pytest.mark.parametrize(
    "line, fault", [("[/EN#1/people A man", "chain 1 is never closed"), ("[/EN#4/other ] x", "chain 4 has no words")]
)
def test_markup_errors_are_reported(line: str, fault: str) -> None:
    assert fault in parse_sentence(line).fault


def test_an_unclosed_phrase_ends_at_the_end_of_the_sentence() -> None:
    assert phrases("see [/EN#1/people A man") == [("A man", "1", "people")]


def test_repeated_spaces_become_one_space() -> None:
    assert parse_sentence("[/EN#1/people  A   man ]  runs  ").text == "A man runs"
    assert phrases("[/EN#1/people  A   man ]  runs  ") == [("A man", "1", "people")]


def annotation(*things: str) -> bytes:
    size = "<size><width>50</width><height>40</height></size>"
    return f"<annotation>{size}{''.join(f'<object>{t}</object>' for t in things)}</annotation>".encode()


def box(*corners: int) -> str:
    names = ("xmin", "ymin", "xmax", "ymax")
    return "<bndbox>" + "".join(f"<{n}>{c}</{n}>" for n, c in zip(names, corners, strict=True)) + "</bndbox>"


def test_boxes_that_count_from_one_become_continuous_coordinates() -> None:
    """The pixel in the corner, 1..1 there, is 0..1 here."""
    found = parse_annotation(annotation("<name>7</name>" + box(1, 1, 1, 1)), "a", Problems())
    assert found.boxes == [(0, 0, 1, 1)]
    assert found.size == (50, 40)


def test_a_box_may_belong_to_several_chains_and_a_chain_have_several_boxes() -> None:
    data = annotation("<name>7</name><name>8</name>" + box(1, 1, 9, 9), "<name>8</name>" + box(2, 2, 9, 9))
    found = parse_annotation(data, "a", Problems())
    assert (found.boxes_of("7"), found.boxes_of("8")) == ((0,), (0, 1))


def test_scenes_have_no_boxes() -> None:
    found = parse_annotation(annotation("<name>9</name><scene>1</scene><nobndbox>1</nobndbox>"), "a", Problems())
    assert found.boxes_of("9") == ()


def test_boxes_without_area_and_damaged_files_are_skipped_and_reported() -> None:
    problems = Problems()
    parse_annotation(annotation("<name>7</name>" + box(9, 1, 3, 5)), "a.xml", problems)
    assert parse_annotation(b"<annotation><obj", "b.xml", problems).boxes == []
    assert [(p.kind, p.item) for p in problems.found] == [
        ("box without area", "a.xml"),
        ("unreadable annotation", "b.xml"),
    ]


def said(caption: str, sentence: str, *phrases: str) -> list[str | None]:
    spans = [(sentence.index(p), sentence.index(p) + len(p)) for p in phrases]
    return [None if s is None else caption[s[0] : s[1]] for s in align_spans(caption, sentence, spans)]


def test_spans_of_equal_sentences_stay_the_same() -> None:
    assert said("A dog runs .", "A dog runs .", "A dog") == ["A dog"]


def test_spacing_and_case_do_not_matter() -> None:
    assert said("a Sheep dog runs", "A sheepdog runs.", "A sheepdog") == ["a Sheep dog"]


def test_a_replaced_word_corresponds_to_its_replacement() -> None:
    assert said("A blonde girl in grey", "A blond girl in gray", "A blond girl", "gray") == ["A blonde girl", "grey"]


def test_one_word_that_replaces_several_is_aligned() -> None:
    assert said("They play offstage now", "They play off the stage now", "the stage") == ["offstage"]


def test_a_missing_phrase_has_no_span() -> None:
    assert said("A man runs in the park", "A man runs in the park with his dog", "his dog") == [None]


def test_phrases_are_not_aligned_with_a_different_sentence() -> None:
    assert said("A", "A black dog on a slope", "A black dog") == [None]


def test_sentences_are_paired_by_similarity_and_not_by_order() -> None:
    captions = ["A blonde girl sits .", "Two dogs run .", "A"]
    sentences = ["Two dogs run.", "Something else altogether here", "A blond girl sits ."]
    assert pair_sentences(captions, sentences) == [2, 0, 1]


def test_captions_without_a_sentence_left_get_none() -> None:
    assert pair_sentences(["one", "two"], ["two"]) == [None, 0]
