"""Pieces of words: the tokenizers of ``transformers`` models, or a small one learnt from the captions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calligram.features.transformers_models import loading_error
from calligram.progress import Track, silent

TOKENIZER_FOLDER = "tokenizer"
_WORD_START = "▁"
SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class WordPieces:
    """A tokenizer of ``transformers``, saved with the matcher. Texts are cut to ``max_pieces`` with special ones."""

    kind: ClassVar[str] = "wordpieces"

    tokenizer: Any
    """a ``PreTrainedTokenizerBase``"""
    max_pieces: int = 64

    @classmethod
    def load_pretrained(cls, name: str, max_pieces: int = 64) -> WordPieces:
        """From a folder or a hub name, not longer than the tokenizer's own limit."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError, KeyError, ImportError, AttributeError) as error:
            raise loading_error("tokenizer", name, error) from error
        return cls(tokenizer, min(max_pieces, int(tokenizer.model_max_length)))

    @classmethod
    def train(cls, texts: Iterable[str], size: int = 8000, min_count: int = 2, max_pieces: int = 64) -> WordPieces:
        """Learn at most ``size`` lower-case pieces. Use training text only."""
        from tokenizers import BertWordPieceTokenizer
        from transformers import PreTrainedTokenizerFast

        pieces = train_pieces(texts, size, min_count)
        learnt = BertWordPieceTokenizer({piece: number for number, piece in enumerate(pieces)}, lowercase=True)
        pad, unknown, start, end, mask = SPECIAL_PIECES
        return cls(
            PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
                tokenizer_object=learnt._tokenizer, model_max_length=max_pieces,
                pad_token=pad, unk_token=unknown, cls_token=start, sep_token=end, mask_token=mask,
            ),
            max_pieces,
        )  # fmt: skip

    def save(self, folder: Path) -> dict[str, Any]:
        """The tokenizer's files in a folder of their own."""
        self.tokenizer.save_pretrained(folder / TOKENIZER_FOLDER)
        return {"max_pieces": self.max_pieces}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> WordPieces:
        """From what ``save`` wrote."""
        return cls.load_pretrained(str(folder / TOKENIZER_FOLDER), int(content["max_pieces"]))

    def __len__(self) -> int:
        return len(self.tokenizer)

    @property
    def pad(self) -> int:
        """Number of the piece that fills batches up; the mask tells it from real ones."""
        return next((n for n in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id) if n is not None), 0)

    @property
    def mask_token(self) -> int:
        """Number of the piece that hides a word in training; never the one that ends a text, as CLIP's unknown does."""
        special = set(self.tokenizer.all_special_ids)
        own = self.tokenizer.mask_token_id, self.tokenizer.unk_token_id, self.tokenizer.pad_token_id
        plain = (n for n in range(len(self)) if n not in special)
        return int(next(n for n in chain(own, plain) if n is not None and n != self.tokenizer.eos_token_id))

    def encode(self, strings: Sequence[str]) -> list[list[int]]:
        """Numbers of each text's pieces, with the special ones the model expects around them."""
        if not len(strings):
            return []
        found = self.tokenizer(list(strings), truncation=True, max_length=self.max_pieces, padding=False)
        return [numbers or [self.pad] for numbers in found["input_ids"]]

    def places(self, text: str) -> list[tuple[int, int] | None] | None:
        """Where each piece that ``encode`` gives lies in the text; None for special ones.

        None instead of a list where the tokenizer cannot tell: those of ``transformers`` that are not fast.
        """
        if not self.tokenizer.is_fast:
            return None
        found = self.tokenizer(
            text, truncation=True, max_length=self.max_pieces, padding=False, return_offsets_mapping=True
        )
        places = [(start, end) if end > start else None for start, end in found["offset_mapping"]]
        return places or [None]  # an empty text is the piece that fills up

    def texts(self, strings: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Numbers (N, W) and the mask of real pieces."""
        return self.load(strings).take(np.arange(len(strings)))

    def load(self, strings: Sequence[str], cache: Path | None = None, track: Track = silent) -> PieceRows:
        """Texts encoded once, to be taken in batches."""
        del cache, track  # quick enough to be done again
        return PieceRows(self.encode(strings), self.pad)


class PieceRows:
    """Encoded texts of different lengths, end to end in one array."""

    def __init__(self, encoded: Sequence[Sequence[int]], pad: int) -> None:
        self.lengths = np.array([len(numbers) for numbers in encoded], dtype=np.int64)
        self._starts = np.cumsum(self.lengths) - self.lengths
        self._numbers = np.fromiter((n for numbers in encoded for n in numbers), dtype=np.int32)
        self._pad = pad

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Numbers (N, W), padded to the longest of these, and their mask."""
        lengths = self.lengths[rows]
        places = np.arange(int(lengths.max(initial=1)))
        mask = places < lengths[:, None]
        numbers = np.full(mask.shape, self._pad, dtype=np.int64)
        numbers[mask] = self._numbers[(self._starts[rows][:, None] + places)[mask]]
        return torch.from_numpy(numbers), torch.from_numpy(mask)


def train_pieces(texts: Iterable[str], size: int, min_count: int) -> list[str]:
    """Special pieces, single characters, then merges of the most frequent neighbours until there are ``size``.

    Learnt as byte pairs over words that begin with a mark, and written as WordPiece writes them, with ``##`` inside a
    word. The WordPiece trainer of ``tokenizers`` breaks ties by a hash that differs from run to run; a run that is
    resumed must find the same pieces again.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    normalise, split = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words = [
        f"{_WORD_START}{word}" for text in texts for word, _ in split.pre_tokenize_str(normalise.normalize_str(text))
    ]
    learnt = Tokenizer(models.BPE())
    learnt.train_from_iterator(
        words, trainers.BpeTrainer(vocab_size=size, min_frequency=min_count, show_progress=False)
    )
    numbered: dict[str, int] = learnt.get_vocab()
    characters = sorted({c for piece in numbered for c in piece} - {_WORD_START})
    merged = [p for p in sorted(numbered, key=numbered.__getitem__) if len(p) > 1]
    known = dict.fromkeys((*SPECIAL_PIECES, *characters, *(f"##{c}" for c in characters)))
    known |= dict.fromkeys(p[1:] if p.startswith(_WORD_START) else f"##{p}" for p in merged)
    return list(known)[:size]
