"""Which words of a sentence a matcher goes by: each is left out in turn, and the score's fall is its weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from calligram.errors import UserError
from calligram.evaluation.attention import AttentionShares, EncodedPicture, attend, one_spaced, see_picture
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import count_truncated_words
from calligram.models.matcher import Matcher, stack
from calligram.text import whitespace_word_spans

Floats = NDArray[np.float32]
BATCH = 128
"""sentences encoded at a time"""
NOISE = 2e-6
"""what single precision cannot tell from nothing, as a share of the score or of 1, whichever is more"""


class WordImportance(NamedTuple):
    """A word of a sentence, and by how much the score falls without it."""

    word: str
    start: int
    """its first character in the sentence"""
    end: int
    """the character after its last"""
    weight: float
    """below zero where the sentence fits better without it"""


class WordImportances(NamedTuple):
    """The score of a picture and a sentence, and what each word has to do with it."""

    score: float
    words: list[WordImportance]
    attention: AttentionShares | None = None
    """who looks where; None for a matcher that compares one vector of the picture with one of the sentence"""

    def telling(self, count: int = 3) -> list[WordImportance]:
        """The words of most weight, most first; those that speak for the picture only."""
        return [word for word in sorted(self.words, key=lambda w: -w.weight) if word.weight > 0][:count]


def leave_one_out(sentence: str, score: Callable[[Sequence[str]], Floats]) -> WordImportances:
    """Leave out each word in turn (dual-path, Fig. 11): its weight is s(all words) - s(all words but this one).

    Words are what stands between spaces, without the commas and full stops around it, which stay. The paper takes out
    words that its text branch does not know beforehand; here they stay, with the weight that leaving them out shows:
    zero where the text side passes them over, rounding of the scores apart.

    Args:
        score: of the picture with each of some sentences.

    Raises:
        UserError: for fewer than two words, since nothing would be left.
    """
    spans = whitespace_word_spans(sentence)
    if len(spans) < 2:
        raise UserError(f"words are weighed by leaving out one at a time; give at least two, got {len(spans)}")
    texts = [sentence, *(sentence[:start] + sentence[end:] for start, end in spans)]
    whole, *rest = (float(value) for value in score([one_spaced(text) for text in texts]))
    return WordImportances(
        whole,
        [
            WordImportance(sentence[start:end], start, end, _fall(whole, less))
            for (start, end), less in zip(spans, rest, strict=True)
        ],
    )


def _fall(whole: float, less: float) -> float:
    fall = whole - less
    return 0.0 if abs(fall) <= NOISE * max(1.0, abs(whole)) else fall


def explain(matcher: Matcher, inputs: Inputs, image: Image.Image, sentence: str) -> WordImportances:
    """Weigh the words of a sentence for a picture, and say where they look; the picture is encoded once.

    See also: ``explain_seen`` for an image of a collection, ``Searcher.explain`` for a picture of a library.
    """
    return explain_picture(matcher, inputs, see_picture(matcher, inputs, image), sentence)


@torch.no_grad()
def explain_picture(matcher: Matcher, inputs: Inputs, seen: EncodedPicture, sentence: str) -> WordImportances:
    """The same for a picture that has been encoded; all sentences go in few batches.

    Of a sentence that is longer than the matcher reads, what is read is weighed: without a word of it, one more would
    be read.
    """
    if cut := count_truncated_words(inputs.texts, sentence):
        sentence = sentence[: max((end for _, end in whitespace_word_spans(sentence)[:-cut]), default=0)]
    device = next(matcher.parameters()).device
    matcher.eval()

    def score(sentences: Sequence[str]) -> Floats:
        pieces = []
        for first in range(0, len(sentences), BATCH):
            words, mask = inputs.texts.texts(sentences[first : first + BATCH])
            pieces.append(matcher.encode_texts(words.to(device), mask.to(device)))
        found: Floats = matcher.score(seen.encoded, stack(pieces))[0].float().cpu().numpy()
        return found

    return leave_one_out(sentence, score)._replace(attention=attend(matcher, inputs, seen, sentence))
