"""Regions and phrases of one image from what Entities says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calligram.data.draft import CaptionRecord, Draft, PhraseRecord
from calligram.data.draft import RegionRecord as Region
from calligram.data.problems import Problems
from calligram.data.readers.entity_boxes import Annotation
from calligram.data.readers.entity_files import Entities, key_of
from calligram.data.readers.entity_markup import MarkedSentence
from calligram.data.readers.phrase_places import pair_sentences, places


def add_regions(draft: Draft, image: str, annotation: Annotation) -> None:
    """Add the boxes of one image; they are in pixels of the size the annotation states."""
    draft.regions += [Region(region_id(image, n), image, box) for n, box in enumerate(annotation.boxes)]


def region_id(image: str, number: int) -> str:
    """Name of a box: stable, as boxes are numbered in the order of the annotation."""
    return f"{image}/box{number}"


def add_phrases(
    draft: Draft,
    caption: CaptionRecord,
    sentence: MarkedSentence,
    spans: Sequence[tuple[int, int] | None],
    annotation: Annotation,
) -> None:
    """Add the phrases of one sentence to the caption that says the same, each at its span."""
    image = caption.images[0]
    for number, (phrase, span) in enumerate(zip(sentence.phrases, spans, strict=True)):
        start, end = span or (-1, -1)
        draft.phrases.append(
            PhraseRecord(
                f"{caption.id}/phrase{number}",
                caption.id,
                start,
                end,
                kind="/".join(phrase.types),
                entity=phrase.entity,
                regions=tuple(region_id(image, n) for n in annotation.boxes_of(phrase.chain)),
                text="" if span else sentence.text[phrase.start : phrase.end],
            )
        )


def join_entities(
    draft: Draft, captions_of: Mapping[str, Sequence[CaptionRecord]], entities: Entities, problems: Problems
) -> None:
    """Add boxes and phrases to images that have captions of their own (Flickr8k).

    The captions stay as they are, so that retrieval is measured on the usual text. Each sentence of Entities is paired
    with the caption that says the same, and its phrases are found there; a phrase that the caption words otherwise
    keeps its own text and has no place in the caption.
    """
    for image in draft.images:
        key = key_of(image.id)
        annotation = entities.annotations.get(key, Annotation())
        image.size = image.size or annotation.size
        add_regions(draft, image.id, annotation)
        sentences = entities.sentences.get(key, [])
        captions = captions_of.get(image.id, ())
        if len(captions) != len(sentences):
            problems.note(
                "number of sentences differs", image.id, f"{len(captions)} captions, {len(sentences)} in Entities"
            )
        paired = pair_sentences([c.text for c in captions], [s.text for s in sentences])
        for caption, number in zip(captions, paired, strict=True):
            if number is not None:
                _join_caption(draft, caption, sentences[number], annotation, problems)


def _join_caption(
    draft: Draft, caption: CaptionRecord, sentence: MarkedSentence, annotation: Annotation, problems: Problems
) -> None:
    spans = places(caption.text, sentence.text, [(p.start, p.end) for p in sentence.phrases])
    for phrase, span in zip(sentence.phrases, spans, strict=True):
        if span is None:
            words = sentence.text[phrase.start : phrase.end]
            problems.note("phrase not found in its caption", caption.id, f"'{words}'; kept without a place")
    add_phrases(draft, caption, sentence, spans, annotation)
