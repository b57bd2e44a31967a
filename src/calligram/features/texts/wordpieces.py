"""Word pieces: the tokenizer of a ``transformers`` model, or a small one trained on the captions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from calligram.features.inputs import TextInput
from calligram.features.texts.vocabulary import TokenRows
from calligram.features.transformers_models import loading_error
from calligram.hub import look_for_hub
from calligram.progress import Track, silent

TOKENIZER_FOLDER = "tokenizer"
_WORD_START = "▁"
SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class WordPieces(TextInput):
    """Text input by a tokenizer of ``transformers``. Texts are truncated to ``max_pieces``, special tokens included."""

    kind: ClassVar[str] = "wordpieces"

    tokenizer: Any
    """a ``PreTrainedTokenizerBase``"""
    max_pieces: int = 64

    @classmethod
    def load_pretrained(cls, name: str, max_pieces: int = 64) -> WordPieces:
        """Load a tokenizer from a folder or by a hub name; its own length limit applies too."""
        from transformers import AutoTokenizer

        look_for_hub(name)
        try:
            tokenizer = AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError, KeyError, ImportError, AttributeError) as error:
            raise loading_error("tokenizer", name, error) from error
        return cls(tokenizer, min(max_pieces, int(tokenizer.model_max_length)))

    @classmethod
    def train(cls, texts: Iterable[str], size: int = 8000, min_count: int = 2, max_pieces: int = 64) -> WordPieces:
        """Train a tokenizer with at most ``size`` lower-case pieces, from training text only."""
        from tokenizers import BertWordPieceTokenizer
        from transformers import PreTrainedTokenizerFast

        pieces = train_pieces(texts, size, min_count)
        trained = BertWordPieceTokenizer({piece: number for number, piece in enumerate(pieces)}, lowercase=True)
        pad, unknown, start, end, mask = SPECIAL_PIECES
        return cls(
            PreTrainedTokenizerFast(
                tokenizer_object=trained._tokenizer, model_max_length=max_pieces,
                pad_token=pad, unk_token=unknown, cls_token=start, sep_token=end, mask_token=mask,
            ),
            max_pieces,
        )  # fmt: skip

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the tokenizer into a subfolder."""
        self.tokenizer.save_pretrained(folder / TOKENIZER_FOLDER)
        return {"max_pieces": self.max_pieces}

    @classmethod
    def read(cls, folder: Path, content: Mapping[str, Any]) -> WordPieces:
        """Read what ``save`` wrote."""
        return cls.load_pretrained(str(folder / TOKENIZER_FOLDER), int(content["max_pieces"]))

    def __len__(self) -> int:
        return len(self.tokenizer)

    @property
    def token_input(self) -> WordPieces:
        """This input."""
        return self

    @property
    def pad(self) -> int:
        """Id of the padding token; the mask separates it from real tokens."""
        return next((n for n in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id) if n is not None), 0)

    def is_known(self, word: str) -> bool:
        """Return True: every word is split into known pieces."""
        return True

    @property
    def mask_token(self) -> int:
        """Id of the token that replaces a word in word dropout; never the end token, as CLIP's unknown token is."""
        special = set(self.tokenizer.all_special_ids)
        candidates = self.tokenizer.mask_token_id, self.tokenizer.unk_token_id, self.tokenizer.pad_token_id
        plain = (n for n in range(len(self)) if n not in special)
        return int(next(n for n in chain(candidates, plain) if n is not None and n != self.tokenizer.eos_token_id))

    def encode(self, strings: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, with the special tokens that the model expects."""
        if not len(strings):
            return []
        found = self.tokenizer(list(strings), truncation=True, max_length=self.max_pieces, padding=False)
        return [numbers or [self.pad] for numbers in found["input_ids"]]

    def token_spans(self, text: str) -> list[tuple[int, int] | None] | None:
        """Return the span of each token of ``encode`` in the text; None for special tokens.

        Returns None instead of a list if the tokenizer cannot give spans: only fast tokenizers can.
        """
        if not self.tokenizer.is_fast:
            return None
        found = self.tokenizer(
            text, truncation=True, max_length=self.max_pieces, padding=False, return_offsets_mapping=True
        )
        spans = [(start, end) if end > start else None for start, end in found["offset_mapping"]]
        return spans or [None]  # an empty text is one padding token

    def texts(self, strings: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encode a few texts: token ids (N, W) and the mask of real tokens."""
        return self.load(strings).take(np.arange(len(strings)))

    def load(self, strings: Sequence[str], cache: Path | None = None, track: Track = silent) -> TokenRows:
        """Encode many texts once."""
        del cache, track  # fast enough to be repeated
        return TokenRows(self.encode(strings), self.pad)


def train_pieces(texts: Iterable[str], size: int, min_count: int) -> list[str]:
    """Return at most ``size`` pieces: special tokens, single characters, then merges of frequent neighbours.

    The pieces are trained by byte-pair encoding over words with a start mark, and are written in the format of
    WordPiece, with ``##`` inside a word. The WordPiece trainer of ``tokenizers`` is not used: it breaks ties by a hash
    that differs from run to run, and a resumed run must find the same pieces.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    normalise, split = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    words = [
        f"{_WORD_START}{word}" for text in texts for word, _ in split.pre_tokenize_str(normalise.normalize_str(text))
    ]
    trained = Tokenizer(models.BPE())
    trained.train_from_iterator(
        words, trainers.BpeTrainer(vocab_size=size, min_frequency=min_count, show_progress=False)
    )
    ids: dict[str, int] = trained.get_vocab()
    characters = sorted({c for piece in ids for c in piece} - {_WORD_START})
    merged = [p for p in sorted(ids, key=ids.__getitem__) if len(p) > 1]
    pieces = dict.fromkeys((*SPECIAL_PIECES, *characters, *(f"##{c}" for c in characters)))
    pieces |= dict.fromkeys(p[1:] if p.startswith(_WORD_START) else f"##{p}" for p in merged)
    return list(pieces)[:size]
