from __future__ import annotations

import numpy as np
import pytest
import torch

from calligram.errors import UserError
from calligram.features.images.pixels import PixelInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import TokenRows
from calligram.features.texts.wordpieces import WordPieces, train_pieces

TEXTS = ["A red disc", "the round thing is blue and the round thing is red", "", "discs"]


def test_batches_are_padded_to_the_longest_text_and_masked(tiny_bert):
    pieces = WordPieces.load_pretrained(str(tiny_bert))
    rows = pieces.load(TEXTS)
    assert len(rows) == 4
    assert rows.lengths[0] == 5
    assert rows.lengths[2] == 2  # start and end
    numbers, mask = rows.take(np.array([2, 0]))
    assert numbers.shape == mask.shape == (2, 5)
    assert mask.sum(1).tolist() == [2, 5]
    assert numbers[~mask].unique().tolist() == [pieces.pad]
    assert numbers.dtype == torch.int64
    together, whole = pieces.texts(TEXTS)
    assert torch.equal(together[0][whole[0]], numbers[1])


def test_long_texts_are_truncated_and_keep_their_end_token(tiny_bert):
    pieces = WordPieces.load_pretrained(str(tiny_bert), max_pieces=6)
    assert max(pieces.load(TEXTS).lengths) == 6
    assert {numbers[-1] for numbers in pieces.encode(TEXTS)} == {pieces.tokenizer.sep_token_id}
    assert WordPieces.load_pretrained(str(tiny_bert), max_pieces=500).max_pieces == 20


@pytest.mark.parametrize("model", ["tiny_bert", "tiny_clip", "tiny_siglip"])
def test_a_saved_tokenizer_does_not_need_its_original_folder(model, request, tmp_path):
    pieces = WordPieces.load_pretrained(str(request.getfixturevalue(model)), max_pieces=7)
    Inputs(PixelInput(), pieces).save(tmp_path / "inputs")
    (tmp_path / "inputs").rename(tmp_path / "moved")
    again = Inputs.read(tmp_path / "moved").texts
    assert isinstance(again, WordPieces)
    assert again.max_pieces == 7
    assert all(torch.equal(one, two) for one, two in zip(again.texts(TEXTS), pieces.texts(TEXTS), strict=True))


def test_pieces_trained_on_captions_encode_new_words():
    pieces = WordPieces.train(["a red disc", "a blue disc"] * 3, size=60, min_count=1)
    spelt = pieces.tokenizer.convert_ids_to_tokens(pieces.encode(["A RED discusses"])[0])
    assert spelt[:3] == ["[CLS]", "a", "red"]
    assert spelt[3] == "disc"
    assert len(pieces) <= 60
    assert pieces.mask_token == pieces.tokenizer.mask_token_id


def test_training_twice_gives_the_same_pieces_despite_equal_frequencies():
    texts = [f"{a}{b} {b}{a}" for a in "abcdefgh" for b in "xyzuvw"]
    assert len({tuple(train_pieces(texts, 90, 1)) for _ in range(10)}) == 1


def test_pieces_equal_those_computed_by_hand():
    """In aab, aab and ab, the pair a b occurs three times; then a ab and the word start before aab occur twice."""
    found = train_pieces(["aab aab ab"], 100, 2)
    assert found[5:9] == ["a", "b", "##a", "##b"]
    assert found[9:] == ["##ab", "##aab", "aab"]


def test_the_mask_token_is_not_the_end_token(tiny_clip):
    pieces = WordPieces.load_pretrained(str(tiny_clip))
    assert pieces.tokenizer.unk_token_id == pieces.tokenizer.eos_token_id
    assert pieces.mask_token not in pieces.tokenizer.all_special_ids


def test_a_missing_tokenizer_is_named_in_the_error():
    with pytest.raises(UserError, match=r"tokenizer '/nowhere' could not be loaded \(there is no such folder\)"):
        WordPieces.load_pretrained("/nowhere")


def test_no_rows_give_an_empty_batch():
    numbers, mask = TokenRows([], 0).take(np.array([], dtype=np.int64))
    assert numbers.shape == mask.shape == (0, 1)
