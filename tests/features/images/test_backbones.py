"""Tiny random backbones of several model families, saved to disk and loaded."""

from __future__ import annotations

import copy
import json
import logging

import pytest
import torch
from torch import nn

from calligram.device import use_compile
from calligram.errors import UserError
from calligram.features import transformers_models
from calligram.features.images.backbones import Backbone, cells_over_views, pixel_input
from calligram.features.images.pixels import mean_over_views
from calligram.features.transformers_models import transformer_layers

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def configurations() -> dict[str, nn.Module]:
    import transformers as t

    vision = {**SMALL, "image_size": 32, "patch_size": 8}
    text = {**SMALL, "vocab_size": 20}
    return {
        "mobilenet": t.MobileNetV2Model(t.MobileNetV2Config(depth_multiplier=0.1, image_size=32)),
        "resnet": t.ResNetModel(
            t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
        ),
        "vit": t.ViTModel(t.ViTConfig(**vision)),
        "dinov2": t.Dinov2Model(t.Dinov2Config(**vision)),
        "clip": t.CLIPModel(t.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)),
        "siglip": t.SiglipModel(t.SiglipConfig(text_config=text, vision_config=vision)),
    }


@pytest.fixture(scope="module", params=["mobilenet", "resnet", "vit", "dinov2", "clip", "siglip"])
def folder(request, tmp_path_factory):
    torch.manual_seed(0)
    target = tmp_path_factory.mktemp(request.param)
    configurations()[request.param].save_pretrained(target)
    return target


def test_every_model_family_gives_a_vector_and_a_grid(folder):
    backbone = Backbone.load(str(folder)).eval()
    found = backbone(torch.randn(2, 3, 32, 32))
    assert found.vectors.shape == (2, backbone.dim)
    assert found.grid.shape[:2] == (2, backbone.dim)
    assert found.grid.shape[2] == found.grid.shape[3] >= 1
    assert torch.isfinite(found.vectors).all()


def test_a_cpu_encodes_images_in_groups_with_the_same_result(folder, monkeypatch):
    backbone, pixels, counts = Backbone.load(str(folder)).eval(), torch.randn(5, 3, 32, 32), []
    backbone.model.register_forward_pre_hook(
        lambda module, args, kwargs: counts.append(len(args[0] if args else kwargs["pixel_values"])), with_kwargs=True
    )
    monkeypatch.setattr(transformers_models, "GROUP_IMAGES", 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    with torch.no_grad():
        groups = backbone(pixels)
    whole = backbone(pixels)  # with gradients
    assert counts == [2, 2, 1, 5]
    for one, two in zip(groups, whole, strict=True):
        torch.testing.assert_close(one, two.detach(), atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        backbone.train()(pixels)  # batch normalization takes the statistics of the batch
    assert counts[4:] == [5]


def test_a_backbone_is_rebuilt_from_its_description_and_weights(folder):
    backbone = Backbone.load(str(folder)).eval()
    again = Backbone.from_description(backbone.description).eval()
    again.load_state_dict(backbone.state_dict())
    pixels = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(again(pixels).vectors, backbone(pixels).vectors)
    assert again.fingerprint == backbone.fingerprint


def test_a_saved_backbone_loads_unchanged(folder, tmp_path):
    backbone = Backbone.load(str(folder)).eval()
    backbone.save(tmp_path / "again")
    assert Backbone.load(str(tmp_path / "again")).fingerprint == backbone.fingerprint


def test_a_variance_too_large_for_half_precision_is_loaded_as_the_largest_number(tmp_path):
    model = configurations()["resnet"]
    model.embedder.embedder.normalization.running_var[3] = 70000
    model.half().save_pretrained(tmp_path)
    found = Backbone.load(str(tmp_path)).model.embedder.embedder.normalization.running_var
    assert found.dtype == torch.float32
    assert found.tolist() == [1, 1, 1, 65504, 1, 1, 1, 1]


def test_grid_cells_keep_the_positions_of_patches():
    """A model without attention between patches changes only the grid cell of the changed patch."""
    import transformers as t

    torch.manual_seed(0)
    model = t.ViTModel(t.ViTConfig(**{**SMALL, "num_hidden_layers": 0}, image_size=32, patch_size=8)).eval()
    plain = torch.zeros(1, 3, 32, 32)
    spot = plain.clone()
    spot[..., 8:16, 24:32] = 1  # row 1, column 3
    with torch.no_grad():
        change = (Backbone(model)(spot).grid - Backbone(model)(plain).grid).abs().sum(1)[0]
    assert change.argmax().item() == 1 * 4 + 3


def test_preprocessing_is_read_from_the_folder_of_the_weights(tmp_path):
    content = {
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [1, 1, 1],
        "size": {"shortest_edge": 256},
        "crop_size": {"height": 64},
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
    assert pixel_input(str(tmp_path)).mean == (0.1, 0.2, 0.3)
    assert pixel_input(str(tmp_path)).size == 64
    assert pixel_input(str(tmp_path), size=48).size == 48


def test_a_folder_without_a_backbone_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"could not be loaded .*folder or a hub name of a vision model"):
        Backbone.load(str(tmp_path))


def test_mobilenet_gives_different_vectors_for_different_photographs(assets):
    backbone = Backbone.load(str(assets / "models" / "mobilenet_v2_1.0_224")).eval()
    assert backbone.dim == 1280
    assert pixel_input(str(assets / "models" / "mobilenet_v2_1.0_224")).std == (0.5, 0.5, 0.5)


def step(backbone, pixels):
    """Gradients of one training step."""
    backbone.zero_grad()
    backbone(pixels).vectors.square().sum().backward()
    return {name: p.grad.clone() for name, p in backbone.named_parameters() if p.grad is not None}


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="compiling takes a minute on a CPU, and is used on a GPU only"
)
@pytest.mark.parametrize("name", ["dinov2", "resnet"])
def test_a_compiled_training_step_equals_a_plain_one(name):
    torch.manual_seed(0)
    backbone = Backbone(configurations()[name]).cuda().train()
    # Large enough that batch normalisation has many values for each channel.
    pixels = torch.randn(8, 3, 96 if name == "resnet" else 32, 96 if name == "resnet" else 32, device="cuda")
    state = {k: v.clone() for k, v in backbone.state_dict().items()}
    plain = step(backbone, pixels)
    backbone.load_state_dict(state)
    with use_compile():
        compiled = step(backbone, pixels)
    largest = max(float(gradient.abs().max()) for gradient in plain.values())
    for key, gradient in plain.items():
        # The gradient of a bias of keys is zero but for rounding.
        atol = max(1e-3 * float(gradient.abs().max()), 1e-6 * largest)
        torch.testing.assert_close(compiled[key], gradient, rtol=1e-3, atol=atol)
    assert backbone._compiles


def test_only_training_batches_of_the_first_shape_are_compiled(monkeypatch):
    compiled, compile_ = [], torch.compile

    def traced(model, **changes):
        compiled.append(model)
        return compile_(model, **changes, backend="eager")

    monkeypatch.setattr(torch, "compile", traced)
    torch.manual_seed(0)
    backbone = Backbone(configurations()["resnet"])
    pixels = torch.randn(4, 3, 32, 32)
    with use_compile():
        with torch.no_grad():
            backbone.eval()(pixels)
        assert not compiled
        compiled_gradients = step(backbone.train(), pixels)
        assert compiled == [backbone.model]
        names = set(backbone.state_dict())
        step(backbone, pixels[:3])
        assert compiled == [backbone.model]
    assert backbone._compiled_shape == pixels.shape
    for key, gradient in step(backbone, pixels).items():
        torch.testing.assert_close(compiled_gradients[key], gradient)
    assert names == {f"model.{name}" for name in backbone.model.state_dict()}


def test_of_a_transformer_the_layers_are_compiled_in_training_only(monkeypatch):
    import transformers as t

    compiled, compile_ = [], torch.compile

    def traced(call, **changes):
        compiled.append(call.__self__)
        return compile_(call, backend="eager")

    monkeypatch.setattr(torch, "compile", traced)
    torch.manual_seed(0)
    backbone = Backbone(t.ViTModel(t.ViTConfig(**{**SMALL, "num_hidden_layers": 3}, image_size=32, patch_size=8)))
    pixels, names = torch.randn(4, 3, 32, 32), set(backbone.state_dict())
    torch._dynamo.reset()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with use_compile():
        backbone.eval()(pixels)
        with torch.no_grad():
            backbone.train()(pixels)
        assert not compiled
        gradients = [step(backbone, pixels), step(backbone, pixels[:3])]
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1, "one for all layers and shapes"
        with torch.no_grad():
            backbone.eval()(pixels)
    assert compiled == transformer_layers(backbone.model)
    assert len(compiled) == 3
    assert set(backbone.state_dict()) == names
    for found, images in zip(gradients, (pixels, pixels[:3]), strict=True):
        for key, gradient in step(backbone.train(), images).items():
            torch.testing.assert_close(found[key], gradient)
    copied = copy.deepcopy(backbone)
    with use_compile():
        assert step(copied, pixels)
    assert compiled[3:] == transformer_layers(copied.model)


@pytest.mark.parametrize("name", ["resnet", "vit"])
def test_a_network_that_cannot_be_compiled_is_trained_without_compilation(name, monkeypatch, caplog):
    def broken(model, **changes):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", broken)
    backbone = Backbone(configurations()[name]).train()
    with use_compile(), caplog.at_level(logging.INFO):
        assert step(backbone, torch.randn(2, 3, 32, 32))
        assert step(backbone, torch.randn(2, 3, 32, 32))
    assert caplog.text.count("runs without compilation: no compiler here") == 1


@pytest.mark.parametrize("name", ["vit", "dinov2", "clip", "siglip"])
def test_a_share_of_the_patches_is_left_out_in_training_only(name, tmp_path):
    torch.manual_seed(0)
    configurations()[name].save_pretrained(tmp_path)
    backbone, pixels = Backbone.load(str(tmp_path)), torch.randn(3, 3, 32, 32)
    whole = backbone.eval()(pixels)
    backbone.drop_patches(0.75)
    torch.testing.assert_close(backbone.eval()(pixels).grid, whole.grid)
    backbone.train()
    one, two = backbone(pixels), backbone(pixels)
    assert one.grid.shape == (3, 16, 1, 4)  # 4 of 16 patches
    assert one.vectors.shape == whole.vectors.shape
    assert not torch.equal(one.vectors, two.vectors)


def test_patches_that_are_kept_have_the_tokens_of_the_whole_image():
    import transformers as t

    torch.manual_seed(0)
    backbone = Backbone(t.Dinov2Model(t.Dinov2Config(**{**SMALL, "num_hidden_layers": 0}, image_size=32, patch_size=8)))
    pixels = torch.randn(2, 3, 32, 32)
    whole = backbone.eval()(pixels).grid.flatten(2)
    backbone.drop_patches(0.5)
    found = backbone.train()(pixels).grid.flatten(2)
    places = backbone._kept
    assert all(len(set(row)) == 8 for row in places.tolist())
    torch.testing.assert_close(found, whole.gather(2, places.unsqueeze(1).expand(-1, whole.shape[1], -1)))


def test_a_compiled_step_leaves_out_new_patches_each_time(monkeypatch):
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda layer, **_: compile_(layer, backend="aot_eager"))
    torch.manual_seed(0)
    backbone = Backbone(configurations()["dinov2"]).train()
    backbone.drop_patches(0.5)
    pixels = torch.randn(2, 3, 32, 32)
    plain = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        plain.append(backbone(pixels).vectors)
    with use_compile():
        for seed, expected in zip((1, 2), plain, strict=True):
            torch.manual_seed(seed)
            torch.testing.assert_close(backbone(pixels).vectors, expected)
    assert all(layer._compiled_call_impl for layer in transformer_layers(backbone.model))


def test_a_cnn_has_no_patches_and_is_trained_on_whole_images(caplog):
    backbone = Backbone(configurations()["resnet"]).train()
    backbone.drop_patches(0.5)
    assert "image.region_dropout=0.5 has no effect" in caplog.text
    assert "ResNetModel has none" in caplog.text
    backbone(torch.rand(2, 3, 32, 32))


@pytest.mark.parametrize("over_views", [mean_over_views, cells_over_views])
def test_an_exported_graph_contains_the_network_once_and_gives_the_same(over_views):
    class Views(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = torch.nn.Conv2d(3, 4, 3)

        def forward(self, images):
            return over_views(self.network, images)

    torch.manual_seed(0)
    module, images = Views(), torch.randn(3, 2, 3, 8, 6)
    exported = torch.export.export(module, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert sum("conv2d" in str(node.target) for node in exported.graph.nodes) == 1
    torch.testing.assert_close(exported.module()(images[:2]), module(images[:2]))
