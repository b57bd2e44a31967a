"""LoRA adapters: merged weights equal adapted layers, only adapters are trained, and a run loads without peft."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from calligram.errors import UserError
from calligram.features.images.backbones import Backbone
from calligram.features.texts.text_encoder import TextEncoder
from calligram.features.transformers_models import add_adapters, load_merged_weights, merged_adapters
from calligram.recipes.fit import fit
from calligram.recipes.parts.adapters import adapter_ranks
from calligram.recipes.parts.tower_settings import ImageSettings, TextSettings
from calligram.training.objectives.objective import parameter_groups
from calligram.training.runs import Run, load_run

peft = pytest.importorskip("peft")


def with_random_adapters(encoder: TextEncoder) -> TextEncoder:
    add_adapters(encoder.model, 3)
    torch.manual_seed(1)
    for name, parameter in encoder.named_parameters():
        if ".lora_" in name:
            parameter.data.normal_(std=0.3)
    return encoder.eval()


def states(encoder: TextEncoder) -> torch.Tensor:
    with torch.no_grad():
        return encoder(torch.tensor([[5, 6, 7, 8]]), torch.ones(1, 4, dtype=torch.bool))


def test_merged_weights_equal_adapted_layers_and_the_merge_of_peft(tiny_bert):
    plain = TextEncoder.load(str(tiny_bert)).eval()
    before = states(plain)
    adapted = with_random_adapters(TextEncoder.load(str(tiny_bert)))
    expected = states(adapted)
    assert not torch.allclose(expected, before, atol=1e-3)
    merged = merged_adapters(adapted.state_dict())
    assert merged.keys() == plain.state_dict().keys()
    plain.load_state_dict(merged)
    torch.testing.assert_close(states(plain), expected, rtol=1e-5, atol=1e-5)
    for module in adapted.modules():
        if isinstance(module, peft.tuners.lora.Linear):
            module.merge()
    own = {name: value for name, value in adapted.state_dict().items() if "base_layer.weight" in name}
    assert own
    for name, value in own.items():
        torch.testing.assert_close(merged[name.replace(".base_layer.", ".")], value)


def test_new_adapters_change_nothing_and_merged_weights_can_be_loaded_again(tiny_bert):
    plain = TextEncoder.load(str(tiny_bert)).eval()
    adapted = with_random_adapters(TextEncoder.load(str(tiny_bert)))
    load_merged_weights(adapted, merged_adapters(adapted.state_dict()))
    other = TextEncoder.load(str(tiny_bert))
    add_adapters(other.model, 2)
    assert torch.equal(states(other.eval()), states(plain))
    merged = merged_adapters(adapted.state_dict())
    plain.load_state_dict(merged)
    torch.testing.assert_close(states(adapted), states(plain))
    load_merged_weights(plain, merged)  # without adapters it only loads


def test_only_adapters_get_gradients(tiny_bert):
    encoder = TextEncoder.load(str(tiny_bert)).train()
    add_adapters(encoder.model, 2)
    head = torch.nn.Linear(encoder.dim, 3)
    whole = torch.nn.ModuleDict({"text": encoder, "head": head})
    (group,) = parameter_groups(whole, torch.nn.Module(), {}, ())
    head(encoder(torch.tensor([[5, 6, 7]]), torch.ones(1, 3, dtype=torch.bool))).square().sum().backward()
    reached = {name for name, parameter in whole.named_parameters() if parameter.grad is not None}
    adapters = {name for name, _ in whole.named_parameters() if ".lora_" in name}
    assert adapters
    assert reached == adapters | {"head.weight", "head.bias"}
    assert len(group["params"]) == len(reached)
    assert parameter_groups(whole, torch.nn.Module(), {}, ("text",))[0]["params"] == list(head.parameters())


def train(tiny, out: Path, epochs: int = 2, **settings: object) -> Run:
    fit("vse", tiny, out=out, epochs=epochs, batch=6, lr=3e-3, dim=16, device="cpu", **settings)
    return Run(out)


def test_training_with_adapters_learns_changes_only_them_and_loads_without_peft(
    tiny, tiny_clip, tiny_bert, tmp_path, monkeypatch
):
    image = ImageSettings(backbone=str(tiny_clip), train=4)
    text = TextSettings(encoder=str(tiny_bert), train=4)
    run = train(tiny, tmp_path / "run", 20, image=image, text=text, ema_decay=0.5)
    state = run.load_state()[0]
    original = Backbone.load(str(tiny_clip)).state_dict()
    kept = {name: value for name, value in state["matcher"].items() if name.startswith("image.")}
    adapters = {name for name in kept if ".lora_" in name}
    assert adapters
    for name, value in kept.items():  # the weights of the model itself did not move
        if name not in adapters:
            assert torch.equal(value, original[name.removeprefix("image.").replace(".base_layer.", ".")])
    assert any(kept[name].abs().sum() > 0 for name in adapters if ".lora_B." in name)
    losses = [row["loss"] for row in run.metrics() if "loss" in row]
    monkeypatch.setitem(sys.modules, "peft", None)
    matcher, _ = load_run(tmp_path / "run")
    assert not any(".lora_" in name for name in load_file(tmp_path / "run/best.safetensors"))
    moved = [name for name, value in matcher.image.state_dict().items() if not torch.equal(value, original[name])]
    assert moved
    assert all(name.endswith(".weight") for name in moved)
    assert losses[-1] < losses[0]


def test_a_dual_encoder_can_be_adapted_and_other_towers_are_refused(tiny, tiny_clip, tmp_path, monkeypatch):
    changes = {"pretrained.model": str(tiny_clip), "image.train": 2, "text.train": 2, "matcher": "pretrained"}
    run = train(tiny, tmp_path / "dual", changes=changes)
    names = load_file(tmp_path / "dual/best.safetensors").keys()
    assert not any("lora" in name for name in names)
    assert any(".lora_A." in name for name in run.load_state()[0]["matcher"])
    with pytest.raises(UserError, match=r"image.train=2 needs a transformers model; give image.backbone="):
        train(tiny, tmp_path / "cnn", changes={"image.train": 2})
    one, two = (ImageSettings(backbone="x", train=train) for train in (2, True))
    with pytest.raises(UserError, match=r"image.train must be the same in all stages that train it"):
        adapter_ranks([(one, TextSettings()), (two, TextSettings())])
    frozen = ImageSettings(backbone="x")
    assert adapter_ranks([(frozen, TextSettings()), (one, TextSettings())]) == (2, 0)
    assert adapter_ranks([(two, TextSettings())]) == (0, 0)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"training with adapters needs peft; install it with"):
        train(tiny, tmp_path / "none", changes=changes)
