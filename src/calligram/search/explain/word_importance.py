"""Word importance: the decrease of the score when a word is left out, and the attention of each word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from calligram.data.collection import MANIFEST, Collection
from calligram.data.pairing import Pairing
from calligram.device import device_of
from calligram.errors import UserError
from calligram.evaluation.attention import (
    AttentionShares,
    EncodedPicture,
    attention_to_sentence,
    encode_picture,
    image_row,
    with_single_spaces,
    word_attention,
    word_parts,
)
from calligram.features.images.region_input import stored_part_boxes
from calligram.features.inputs import ImageInput, Inputs
from calligram.features.texts.vocabulary import count_truncated_words
from calligram.models.matcher import Encoded, Matcher, stack
from calligram.progress import Track, silent
from calligram.search.library.library import Item
from calligram.search.library.matchers import MatcherEncoder, on_device
from calligram.text import whitespace_word_spans

Floats = NDArray[np.float32]
BATCH_SENTENCES = 128
ROUNDING_ERROR = 2e-6
"""differences below it count as zero: a share of the score, or of 1 where that is more"""
OPEN_COLLECTIONS = 8
"""collections that stay open, for the boxes of their regions"""


class WordImportance(NamedTuple):
    """A word of a sentence, and the decrease of the score without it."""

    word: str
    start: int
    """its first character in the sentence"""
    end: int
    """the character after its last"""
    weight: float
    """negative where the score is higher without the word"""


class WordImportances(NamedTuple):
    """The score of a picture and a sentence, and the importance of each word."""

    score: float
    words: list[WordImportance]
    attention: AttentionShares | None = None
    """None for a matcher that compares one vector of the picture with one of the sentence"""

    def most_important(self, count: int = 3) -> list[WordImportance]:
        """The words with the largest positive weights, largest first."""
        return [word for word in sorted(self.words, key=lambda w: -w.weight) if word.weight > 0][:count]


def leave_one_out(sentence: str, score: Callable[[Sequence[str]], Floats]) -> WordImportances:
    """Leave out each word in turn (dual-path, Fig. 11): its weight is s(all words) - s(all words but this one).

    Words are separated by spaces. Commas and full stops around a word stay in the sentence. The paper first removes
    the words that its text branch does not know. Here they stay, and have the weight zero where the text tower ignores
    them, except for rounding.

    Args:
        sentence: of at least two words.
        score: returns the score of the picture with each of some sentences.

    Raises:
        UserError: for fewer than two words, because no word would be left.
    """
    spans = whitespace_word_spans(sentence)
    if len(spans) < 2:
        raise UserError(
            f"the importance of a word is measured by leaving it out; give at least two words, got {len(spans)}"
        )
    texts = [sentence, *(sentence[:start] + sentence[end:] for start, end in spans)]
    whole, *rest = (float(value) for value in score([with_single_spaces(text) for text in texts]))
    return WordImportances(
        whole,
        [
            WordImportance(sentence[start:end], start, end, _decrease(whole, less))
            for (start, end), less in zip(spans, rest, strict=True)
        ],
    )


def _decrease(whole: float, less: float) -> float:
    decrease = whole - less
    return 0.0 if abs(decrease) <= ROUNDING_ERROR * max(1.0, abs(whole)) else decrease


def explain(matcher: Matcher, inputs: Inputs, image: Image.Image, sentence: str) -> WordImportances:
    """The importance and the attention of each word of a sentence, for one picture.

    See also: ``explain_picture`` for a picture that is encoded already, ``Searcher.explain`` for an item of a library.
    """
    return explain_picture(matcher, inputs, encode_picture(matcher, inputs, image), sentence)


@torch.no_grad()
def explain_picture(matcher: Matcher, inputs: Inputs, seen: EncodedPicture, sentence: str) -> WordImportances:
    """The importance and the attention of each word of a sentence, for an encoded picture.

    A sentence that is too long for the matcher is truncated first: otherwise, leaving out a word would let the matcher
    read one more word at the end.
    """
    if cut := count_truncated_words(inputs.texts, sentence):
        sentence = sentence[: max((end for _, end in whitespace_word_spans(sentence)[:-cut]), default=0)]
    device = device_of(matcher)
    matcher.eval()

    def score(sentences: Sequence[str]) -> Floats:
        pieces = []
        for first in range(0, len(sentences), BATCH_SENTENCES):
            words, mask = inputs.texts.texts(sentences[first : first + BATCH_SENTENCES])
            pieces.append(matcher.encode_texts(words.to(device), mask.to(device)))
        found: Floats = matcher.score(seen.encoded, stack(pieces))[0].float().cpu().numpy()
        return found

    return leave_one_out(sentence, score)._replace(attention=attention_to_sentence(matcher, inputs, seen, sentence))


def explain_random_pairs(
    matcher: Matcher,
    inputs: Inputs,
    images: Encoded,
    pairing: Pairing,
    *,
    count: int = 4,
    seed: int = 0,
    track: Track = silent,
) -> list[tuple[int, WordImportances]]:
    """The rows of images, and the importance of the words of a matching text, for random pairs of different images.

    Texts of fewer than two words are left out.

    Args:
        images: encodings of the images of the pairing.
    """
    rows, columns = pairing.matches.pairs()
    chosen: dict[int, str] = {}
    for pair in np.random.default_rng(seed).permutation(len(rows)).tolist():
        text = pairing.texts.strings[columns[pair]]
        if len(whitespace_word_spans(text)) - count_truncated_words(inputs.texts, text) >= 2:
            chosen.setdefault(int(rows[pair]), text)
        if len(chosen) == count:
            break
    return [
        (row, explain_picture(matcher, inputs, EncodedPicture(images.rows(slice(row, row + 1)), None), text))
        for row, text in track(chosen.items(), "explaining", len(chosen))
    ]


@torch.inference_mode()
def item_attention(encoder: MatcherEncoder, image: Encoded, item: Item, text: str) -> AttentionShares | None:
    """The attention between an item of a library and a text; None for a matcher without attention.

    Args:
        encoder: of the matcher.
        image: the item's encoding.
        item: of the library.
        text: any text.
    """
    if not encoder.matcher.attends or image.parts is None:
        return None
    with encoder.tokenizer_lock:
        parts = word_parts(encoder.inputs, text)
    if parts is None:
        return None
    boxes = part_boxes(encoder.inputs.images, item, image.parts.shape[1])
    picture = EncodedPicture(on_device(image, encoder.device), boxes)
    return word_attention(encoder.matcher, picture, encoder.texts([with_single_spaces(text)]), parts)


def part_boxes(images: ImageInput, item: Item, count: int) -> Floats | None:
    """Boxes (count, 4) of the parts of an item in shares of the picture; None where they are not known.

    Grid cells follow from the size of the picture. The boxes of stored features are read from the collection that the
    item came from.
    """
    name = images.stored_name
    if name is None:
        return images.part_boxes((item.width, item.height), count)
    root = str(item.metadata["source"])
    try:
        collection = _open_collection(root, (Path(root) / MANIFEST).stat().st_mtime_ns)
        return stored_part_boxes(name, collection, image_row(collection, str(item.metadata["path"])))
    except (UserError, OSError):  # the collection was moved or changed: importance and attention need no boxes
        return None


@lru_cache(OPEN_COLLECTIONS)
def _open_collection(root: str, mtime: int) -> Collection:
    """A collection that is opened again when its manifest changes, because regions may have been added."""
    return Collection.open(root)
