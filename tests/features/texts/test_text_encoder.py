from __future__ import annotations

import numpy as np
import pytest
import torch

from calligram.device import use_compile
from calligram.errors import UserError
from calligram.features.images.backbones import Backbone, BackboneInput
from calligram.features.images.pixels import PixelInput
from calligram.features.inputs import Inputs
from calligram.features.texts.text_encoder import EncoderInput, TextEncoder, full_mask
from calligram.features.texts.vocabulary import known_lengths, length_groups
from calligram.features.texts.wordpieces import WordPieces
from calligram.features.transformers_models import transformer_layers

TEXTS = ["a red disc", "the round thing is blue", "snow", "a red disc"]


@pytest.fixture
def source(tiny_bert):
    return EncoderInput(TextEncoder.load(str(tiny_bert)).eval(), WordPieces.load_pretrained(str(tiny_bert)), "tiny")


def test_states_equal_those_of_the_encoder_in_half_precision(source, tmp_path):
    states, mask = source.load(TEXTS, tmp_path).take(np.arange(4))
    words, real = source.pieces.texts(TEXTS)
    with torch.no_grad():
        expected = source.encoder(words, real)
    assert mask.tolist() == real.tolist()
    torch.testing.assert_close(states[mask], expected[real], rtol=2e-3, atol=2e-3)
    assert not states[~mask].any()


def test_compiled_layers_draw_the_same_dropout_and_take_the_same_step(tiny_bert, monkeypatch):
    compile_ = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda call, dynamic, options: compile_(call, dynamic=dynamic, backend="eager")
    )
    encoder = TextEncoder.load(str(tiny_bert)).train()
    assert encoder.model.config.hidden_dropout_prob > 0
    torch._dynamo.reset()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for texts, length in ((3, 4), (3, 7), (5, 9)):
        words, found = torch.randint(5, 20, (texts, length)), []
        for on in (False, True):
            torch.manual_seed(1)
            encoder.zero_grad()
            with use_compile(on):
                states = encoder(words, torch.ones_like(words))
            states.square().sum().backward()
            found.append([states, *(p.grad.clone() for p in encoder.parameters() if p.grad is not None)])
        torch.testing.assert_close(*found)
    assert all(layer._compiled_call_impl for layer in transformer_layers(encoder.model))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1, "one for all layers and lengths"


@pytest.mark.parametrize("kind", ["bert", "mpnet", "roberta"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_mask_for_all_pairs_of_words_gives_the_same_states(kind, attention):
    import transformers as t

    small = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = t.AutoConfig.for_model(kind, **small, intermediate_size=16, max_position_embeddings=20)
    torch.manual_seed(0)
    model = t.AutoModel.from_config(config, attn_implementation="eager" if kind == "mpnet" else attention).eval()
    words, mask = torch.randint(5, 30, (4, 7)), torch.arange(7) < torch.tensor([[7], [3], [1], [5]])
    given = full_mask(model, mask)
    assert given.ndim == (2 if kind == "roberta" else 4)
    with torch.no_grad():
        plain, full = (model(input_ids=words, attention_mask=m).last_hidden_state for m in (mask.long(), given))
    torch.testing.assert_close(full[mask], plain[mask])


def test_a_query_is_encoded_like_the_collection(source, tmp_path):
    rows = source.load(TEXTS, tmp_path)
    for row, text in enumerate(TEXTS):
        stored, _ = rows.take(np.array([row]))
        alone, _ = source.texts([text])
        torch.testing.assert_close(stored, alone, rtol=2e-3, atol=2e-3)


def test_each_text_is_encoded_once(source, tmp_path, monkeypatch):
    run, seen = EncoderInput._run, []
    monkeypatch.setattr(EncoderInput, "_run", lambda self, words: (seen.append(len(words)), run(self, words))[1])
    source.load(TEXTS, tmp_path)
    assert sum(seen) == 3
    source.load([*TEXTS, "two more words"], tmp_path)
    assert sum(seen) == 4


def test_another_encoder_has_another_store(source, tiny_bert, tmp_path):
    other = EncoderInput(TextEncoder.load(str(tiny_bert)).eval(), source.pieces, "other")
    with torch.no_grad():
        next(other.encoder.parameters()).add_(1)
    first, _ = source.load(TEXTS, tmp_path).take(np.arange(4))
    second, _ = other.load(TEXTS, tmp_path).take(np.arange(4))
    assert not torch.equal(first, second)


def test_a_saved_input_gives_the_same_result_after_reading(source, tmp_path):
    Inputs(PixelInput(16), source).save(tmp_path)
    back = Inputs.read(tmp_path).texts
    assert isinstance(back, EncoderInput)
    torch.testing.assert_close(back.texts(TEXTS)[0], source.texts(TEXTS)[0])


def test_frozen_networks_of_both_inputs_move_to_a_device(source, tiny_classifier):
    seen = BackboneInput(Backbone.load(str(tiny_classifier)), PixelInput(32), "tiny")
    inputs = Inputs(seen, source)
    assert inputs.to("meta") is inputs
    for network in (seen.backbone, source.encoder):
        assert {p.device.type for p in network.parameters()} == {"meta"}
    Inputs(PixelInput(32), source.pieces).to("meta")  # no network to move


def test_word_dropout_is_refused(source):
    with pytest.raises(UserError, match=r"use text\.word_dropout=0 or text\.train=true"):
        _ = source.mask_token


def test_texts_of_similar_length_are_encoded_together(tiny_bert):
    """States and gradients are the same; a batch of texts of equal length, or of few texts, is not divided."""
    encoder, pieces = TextEncoder.load(str(tiny_bert)).eval(), WordPieces.load_pretrained(str(tiny_bert))
    strings = [" ".join(["disc"] * (1 + 7 * number % 23)) for number in range(64)]
    words, mask = pieces.texts(strings)
    lengths = mask.sum(1).numpy()
    weights = torch.randn(*mask.shape, encoder.dim) * mask[..., None]
    results = []
    for known in ((), lengths):
        encoder.zero_grad()
        with known_lengths(known):
            states = encoder(words, mask)
        (states * weights).sum().backward()
        results.append((states[mask], encoder.model.get_input_embeddings().weight.grad))
        assert states.shape == weights.shape
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)
    with known_lengths(lengths):
        groups = length_groups(*words.shape)
        assert sorted(np.concatenate([rows for rows, _ in groups])) == list(range(64))
        assert all(lengths[rows].max() <= length <= words.shape[1] for rows, length in groups)
        assert len(groups) == 4
        assert not length_groups(63, 30)  # lengths of other texts
    with known_lengths(np.full(64, 9)):
        assert not length_groups(64, 9)
    assert not length_groups(*words.shape)


def test_groups_are_put_back_in_the_order_of_the_texts(tiny_bert, monkeypatch):
    encoder, pieces = TextEncoder.load(str(tiny_bert)).eval(), WordPieces.load_pretrained(str(tiny_bert))
    rows = pieces.load([" ".join(["disc"] * (1 + number % 20)) for number in range(64)])
    words, mask = rows.take(np.arange(64))
    assert rows.lengths.tolist() == mask.sum(1).tolist()
    shapes = []
    monkeypatch.setattr(encoder, "_states", lambda words, mask: shapes.append(words.shape) or words[..., None].float())
    with known_lengths(rows.lengths):
        found = encoder(words, mask)
    assert [count for count, _ in shapes] == [16] * 4
    assert (found[..., 0][mask] == words[mask]).all()
