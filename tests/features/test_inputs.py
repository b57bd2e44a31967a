from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch

import calligram
from calligram.errors import UserError
from calligram.features.images.backbones import Backbone, BackboneInput
from calligram.features.images.pixels import PixelInput
from calligram.features.images.region_input import RegionInput
from calligram.features.images.stored_input import StoredInput
from calligram.features.inputs import IMAGE_INPUTS, TEXT_INPUTS, ImageInput, Inputs, TextInput, image_input, text_input
from calligram.features.joined_input import JoinedImageInput, JoinedTextInput
from calligram.features.pseudo.concepts import ConceptInput
from calligram.features.regions.region_features import RegionCrops
from calligram.features.texts.chunker import Chunker, PhraseSpan
from calligram.features.texts.text_encoder import EncoderInput, TextEncoder
from calligram.features.texts.text_vectors import TextVectorInput, TextVectorSettings
from calligram.features.texts.vocabulary import Vocabulary
from calligram.features.texts.wordpieces import WordPieces

TEXTS = ["a red dog", "a blue ball"]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Forget the classes that a test registers."""
    for catalog in (IMAGE_INPUTS, TEXT_INPUTS):
        monkeypatch.setattr(catalog, "_registered", {})


@pytest.fixture
def frozen(tiny_clip):
    return BackboneInput(Backbone.load(str(tiny_clip)).eval(), PixelInput(16), "tiny", "grid")


def abilities(found):
    names = ("pixel_input", "network", "stored_name", "region_input")
    return {name for name in names if getattr(found, name) is not None}


def text_abilities(found):
    names = ("token_input", "network", "vocabulary", "vector_size")
    return {name for name in names if getattr(found, name) is not None}


def test_image_inputs_state_what_they_can_do(frozen):
    regions = RegionInput(RegionCrops(PixelInput(16), 2), "grid", "grid", 4)
    assert abilities(PixelInput(8)) == {"pixel_input"}
    assert abilities(StoredInput("colour")) == {"stored_name"}
    assert abilities(frozen) == {"pixel_input", "network"}
    assert abilities(regions) == {"region_input"}
    assert abilities(JoinedImageInput(frozen, regions, 4)) == set()


def test_text_inputs_state_what_they_can_do(tiny_bert):
    pieces = WordPieces.load_pretrained(str(tiny_bert), 24)
    encoder = EncoderInput(TextEncoder.load(str(tiny_bert)), pieces, "bert")
    vectors = TextVectorInput.fit(TEXTS, None, TextVectorSettings(kind="tfidf"))
    assert text_abilities(Vocabulary.build(TEXTS, 1)) == {"token_input", "vocabulary"}
    assert text_abilities(pieces) == {"token_input"}
    assert text_abilities(encoder) == {"token_input", "network"}
    assert encoder.token_input is pieces
    assert text_abilities(vectors) == {"vector_size"}
    assert vectors.vector_size == vectors.texts(TEXTS)[0].shape[1]
    assert text_abilities(ConceptInput.from_labels(["dog", "cat"], "none", None)) == {"vector_size"}
    assert text_abilities(JoinedTextInput(vectors, vectors, None)) == set()


def test_the_network_of_an_input_computes_what_it_gives_for_pictures(frozen, tiny_bert):
    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(frozen.run_network(pixels), frozen.features(pixels))
    assert PixelInput(8).run_network(pixels) is pixels
    encoder = EncoderInput(TextEncoder.load(str(tiny_bert)).eval(), WordPieces.load_pretrained(str(tiny_bert)), "bert")
    states, mask = encoder.texts(TEXTS)
    with torch.no_grad():
        found = encoder.run_network(*encoder.token_input.texts(TEXTS))
    torch.testing.assert_close(found * mask[..., None], states, atol=5e-3, rtol=0)


def test_frozen_networks_move_to_a_device_also_inside_a_joined_input(frozen):
    regions = RegionInput(RegionCrops(PixelInput(16), 2), "grid", "grid", 4)
    words = Vocabulary.build(TEXTS, 1)
    Inputs(JoinedImageInput(frozen, regions, 4), words).to("meta")
    assert next(frozen.backbone.parameters()).device.type == "meta"


def test_a_joined_input_of_texts_is_saved_with_the_kinds_of_its_parts(tmp_path):
    sentences, phrases = (TextVectorInput.fit(TEXTS[:n], None, TextVectorSettings(kind="tfidf")) for n in (2, 1))
    chunker = Chunker.train([("a red dog", [PhraseSpan(0, 9)])] * 10, epochs=1)
    joined = JoinedTextInput(sentences, phrases, chunker)
    content = joined.save(tmp_path)
    assert content["phrases"]["kind"] == "text-vectors"
    older = {name: {k: v for k, v in part.items() if k != "kind"} for name, part in content.items()}
    for written in (content, older):  # earlier versions wrote no kind
        found = JoinedTextInput.read(tmp_path, written)
        assert torch.equal(found.texts(TEXTS)[0], joined.texts(TEXTS)[0])


def test_no_caller_asks_for_the_class_of_an_input():
    root = Path(calligram.__file__).parent
    classes = {
        resolve_name(path).__name__ for table in (IMAGE_INPUTS, TEXT_INPUTS) for path in table.references.values()
    }
    assert len(classes) == 12
    found = [
        f"{file.relative_to(root)}:{node.lineno}"
        for file in root.rglob("*.py")
        if file.relative_to(root).parts[0] != "features"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
        if classes & {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
    ]
    assert not found


def own_image_input():
    @image_input("brightness")
    @dataclass(frozen=True)
    class Brightness(ImageInput):
        """One number for each picture."""

        scale: float = 1.0

        def save(self, folder):
            return {"scale": self.scale}

        @classmethod
        def read(cls, folder, content):
            return cls(**content)

        def images(self, images):
            return torch.tensor([[self.scale * sum(image.convert("L").getdata())] for image in images])

    return Brightness


def own_text_input():
    @text_input("length")
    @dataclass(frozen=True)
    class Length(TextInput):
        """One number for each text."""

        def save(self, folder):
            return {}

        @classmethod
        def read(cls, folder, content):
            return cls(**content)

    return Length


def test_inputs_from_outside_are_saved_and_read(tmp_path):
    images, texts = own_image_input(), own_text_input()
    Inputs(images(2.0), texts()).save(tmp_path)
    content = json.loads((tmp_path / "inputs.json").read_text())
    assert content["images"] == {
        "kind": "brightness",
        "class": f"{__name__}:own_image_input.<locals>.Brightness",
        "scale": 2.0,
    }
    found = Inputs.read(tmp_path)
    assert found.images == images(2.0)
    assert found.texts == texts()
    assert abilities(found.images) == set()
    assert found.images.part_boxes((4, 4), 4) is None
    assert text_abilities(found.texts) == set()
    assert found.texts.token_spans("a dog") is None
    found.to("cpu")


def test_reading_does_not_import_the_class_that_a_file_names(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    content = {"images": {"kind": "own", "class": "evil:Own"}, "texts": {"kind": "words", "words": [], "max_words": 3}}
    (tmp_path / "inputs.json").write_text(json.dumps(content))
    with pytest.raises(
        UserError, match=r"image input 'own' is the class evil:Own, .*\"import evil\".*--import evil VERB"
    ):
        Inputs.read(tmp_path)


def test_an_input_that_is_not_registered_is_not_saved(tmp_path):
    images = own_image_input()
    IMAGE_INPUTS._registered.clear()
    with pytest.raises(UserError, match=r"Brightness is not known as an input .*calligram\.image_input\(NAME\)"):
        Inputs(images(), Vocabulary.build(TEXTS, 1)).save(tmp_path)


def test_unknown_kinds_are_refused(tmp_path):
    (tmp_path / "inputs.json").write_text(json.dumps({"images": {"kind": "pixel"}, "texts": {"kind": "words"}}))
    with pytest.raises(UserError, match="unknown image input 'pixel'; did you mean 'pixels'"):
        Inputs.read(tmp_path)


def test_the_decorators_are_public():
    assert calligram.image_input is image_input
    assert calligram.text_input is text_input
