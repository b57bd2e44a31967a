from __future__ import annotations

import pytest
import torch
from PIL import Image

from calligram.errors import UserError
from calligram.features.images.backbones import pixel_input
from calligram.features.texts.wordpieces import WordPieces
from calligram.models import catalog
from calligram.models.pretrained import Pretrained, load_pretrained

TEXTS = ["a red disc", "the round thing is blue", "snow"]


@pytest.fixture(params=["tiny_clip", "tiny_siglip"])
def folder(request):
    return request.getfixturevalue(request.param)


def loaded(folder) -> tuple[Pretrained, WordPieces]:
    pieces = WordPieces.load_pretrained(str(folder))
    return load_pretrained(str(folder), pieces.pad)[0].eval(), pieces


def test_the_ranking_equals_that_of_the_original_model(folder):
    from transformers import AutoModel

    matcher, pieces = loaded(folder)
    images = torch.randn(5, 3, 16, 16)
    own = AutoModel.from_pretrained(folder).eval()
    tokens = pieces.tokenizer(TEXTS, padding="max_length", max_length=12, return_tensors="pt")
    masks = {} if own.config.model_type == "siglip" else {"attention_mask": tokens["attention_mask"]}
    with torch.no_grad():
        theirs = own(input_ids=tokens["input_ids"], pixel_values=images, **masks).logits_per_image
        ours = matcher.score(matcher.encode_images(images), matcher.encode_texts(*pieces.texts(TEXTS)))
    bias = getattr(own, "logit_bias", torch.zeros(()))
    torch.testing.assert_close(ours * own.logit_scale.exp() + bias, theirs, rtol=1e-4, atol=1e-4)


def test_a_text_alone_equals_the_text_padded_in_a_batch(folder):
    matcher, pieces = loaded(folder)
    together = matcher.encode_texts(*pieces.texts(TEXTS)).vectors
    for row, string in enumerate(TEXTS):
        torch.testing.assert_close(matcher.encode_texts(*pieces.texts([string])).vectors[0], together[row])


def test_a_saved_matcher_scores_the_same_without_the_original_folder(folder, tmp_path):
    matcher, pieces = loaded(folder)
    catalog.save(matcher, tmp_path / "matcher.json", tmp_path / "best.safetensors")
    assert str(folder) not in (tmp_path / "matcher.json").read_text()
    again = catalog.load(tmp_path / "matcher.json", tmp_path / "best.safetensors")
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(again.encode_images(images).vectors, matcher.encode_images(images).vectors)
    words = pieces.texts(TEXTS)
    assert torch.equal(again.encode_texts(*words).vectors, matcher.encode_texts(*words).vectors)


def test_gradients_reach_every_weight_and_score_pairs_is_the_diagonal(folder):
    matcher, pieces = loaded(folder)
    one, two = matcher.encode_images(torch.randn(3, 3, 16, 16)), matcher.encode_texts(*pieces.texts(TEXTS))
    grid = matcher.score(one, two)
    torch.testing.assert_close(matcher.score_pairs(one, two), grid.diagonal())
    grid.square().sum().backward()
    assert not [name for name, p in matcher.named_parameters() if p.grad is None]


def test_images_are_prepared_as_by_the_original_processor(folder):
    from transformers import AutoImageProcessor

    picture = Image.effect_noise((40, 40), 60).convert("RGB").resize((160, 160), Image.Resampling.BICUBIC)
    prepared = pixel_input(str(folder), 16)
    ours = prepared.finish(prepared.images([picture]))
    theirs = AutoImageProcessor.from_pretrained(folder)(picture, return_tensors="pt")["pixel_values"]
    assert (ours - theirs).abs().mean() < 0.05


def test_a_vision_text_dual_encoder_of_any_two_encoders_loads(tmp_path):
    from transformers import BertConfig, VisionTextDualEncoderConfig, VisionTextDualEncoderModel, ViTConfig

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = VisionTextDualEncoderConfig.from_vision_text_configs(
        ViTConfig(**sizes, image_size=16, patch_size=8), BertConfig(**sizes, vocab_size=20), projection_dim=8
    )
    VisionTextDualEncoderModel(config).save_pretrained(tmp_path)
    matcher, temperature = load_pretrained(str(tmp_path), 0)
    assert 0 < temperature < 1
    catalog.save(matcher, tmp_path / "matcher.json", tmp_path / "best.safetensors")
    again = catalog.load(tmp_path / "matcher.json", tmp_path / "best.safetensors")
    assert again.encode_images(torch.randn(2, 3, 16, 16)).vectors.shape == (2, 8)
    assert again.encode_texts(torch.tensor([[3, 4]]), torch.ones(1, 2, dtype=torch.bool)).vectors.shape == (1, 8)


def test_a_model_that_is_not_a_dual_encoder_is_refused(tiny_bert):
    with pytest.raises(UserError, match="is a bert model and not a dual encoder"):
        load_pretrained(str(tiny_bert), 0)
    with pytest.raises(UserError, match=r"dual encoder 'nowhere/at-all' could not be loaded|dual encoder './x'"):
        load_pretrained("./x", 0)
