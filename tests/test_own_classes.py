"""Classes that the package has never heard of: saved, loaded in another process, and used by everything."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
import torch

import calligram as cg
from calligram.data.readers.catalog import READERS
from calligram.features.inputs import IMAGE_INPUTS
from calligram.lazy import import_code
from calligram.models.catalog import MATCHERS
from calligram.training.loop import Loop, Stage
from calligram.training.objectives.objective import Objective
from calligram.training.runs import Run

OWN = '''
from dataclasses import asdict, dataclass

import torch
from torch import nn

import calligram as cg
from calligram.features.images.pixels import PixelInput


@dataclass(frozen=True)
class OwnSettings:
    words: int
    size: int = 6


@cg.matcher("own")
class Own(cg.EmbeddingMatcher):
    settings: OwnSettings

    def __init__(self, settings):
        super().__init__()
        self.settings = settings
        self.image = nn.Linear(48, settings.size)
        self.words = nn.Embedding(settings.words, settings.size)

    def encode_images(self, images, mask=None):
        return cg.Encoded(self.image(images.flatten(1)))

    def encode_texts(self, texts, mask=None):
        return cg.Encoded(self.words(texts).mean(1))


@cg.matcher("fixed")
class Fixed(cg.Matcher):
    """Without settings and parameters; its score is not a cosine."""

    def encode_images(self, images, mask=None):
        return cg.Encoded(images.flatten(1))

    def encode_texts(self, texts, mask=None):
        counts = torch.zeros(len(texts), 48, device=texts.device)
        return cg.Encoded(counts.scatter_add(1, texts % 48, torch.ones_like(texts, dtype=counts.dtype)))

    def score_pairs(self, images, texts):
        return -(images.vectors - texts.vectors).abs().sum(-1)


@cg.image_input("mirrored")
@dataclass(frozen=True)
class Mirrored(cg.ImageInput):
    """Pixels, from right to left."""

    pixels: PixelInput

    @property
    def pixel_input(self):
        return self.pixels

    def save(self, folder):
        return {"pixels": asdict(self.pixels)}

    @classmethod
    def read(cls, folder, content):
        return cls(PixelInput.read(folder, content["pixels"]))

    def load(self, visuals, track=None):
        return self.pixels.load(visuals)

    def images(self, images):
        return self.pixels.images(images)

    def finish(self, rows, augment=None):
        return self.pixels.finish(rows, augment).flip(-1)


@cg.reader("own-format")
def read_own(source, problems):
    from calligram.data.draft import Draft

    return Draft(name="own")
'''


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """A file with classes, imported here; the classes are forgotten after the module."""
    file = tmp_path_factory.mktemp("code") / "own_classes_of_a_test.py"
    file.write_text(OWN)
    before = {id(table): (table, dict(table._registered)) for table in (MATCHERS, IMAGE_INPUTS, READERS)}
    path = list(sys.path)
    import_code(str(file))
    yield file
    sys.path[:] = path
    del sys.modules[file.stem]
    for table, registered in before.values():
        table._registered = registered


@pytest.fixture(scope="module")
def own(code):
    return sys.modules[code.stem]


@pytest.fixture(scope="module")
def run(own, tiny, tmp_path_factory):
    """A run of the matcher with parameters, and a run of the one without."""
    folder = tmp_path_factory.mktemp("runs")
    words = cg.inputs(tiny).texts
    inputs = cg.Inputs(own.Mirrored(cg.inputs(tiny, image_size=4).images), words)
    torch.manual_seed(0)
    for name, matcher in (("own", own.Own(own.OwnSettings(len(words)))), ("fixed", own.Fixed())):
        made = Run.create(folder / name, {"collection folder": str(tiny.folder)})
        made.describe(matcher, inputs)
        made.save_best(matcher.state_dict())
    return folder / "own"


def test_files_name_the_class_for_people(run, code):
    assert json.loads((run / "matcher.json").read_text())["class"] == f"{code.stem}:Own"
    assert json.loads((run / "run.json").read_text())["class"] == f"{code.stem}:Own"
    assert json.loads((run / "inputs" / "inputs.json").read_text())["images"]["class"] == f"{code.stem}:Mirrored"


EVERYTHING = """
import json, sys
from pathlib import Path
import torch
from PIL import Image
import calligram as cg
from calligram.search.explain.word_importance import explain

code, run, collection, out = sys.argv[1:]
sys.path.append(str(Path(code).parent))
__import__(Path(code).stem)
found = {}
for name in ("own", "fixed"):
    folder = Path(run).parent / name
    loaded = cg.load(folder)
    found[name] = loaded.evaluate("test", device="cpu").retrieval.rsum
    library = Path(out) / name
    cg.index(loaded, collection, out=library)
    searcher = cg.Searcher.open(library)
    hits = searcher.images("a red disc", k=3, all=True).hits
    assert len(hits) == 3 and searcher.texts(Image.new("RGB", (20, 20), "red"), k=2, all=True).hits
    assert len(searcher.explain(hits[0].id, "a red disc").words) == 3
    picture = Image.new("RGB", (20, 20), "red")
    assert len(explain(loaded.matcher, loaded.inputs, picture, "a red disc").words) == 3

    from calligram.evaluation.recall import encode_pairing, load_pairing
    from calligram.evaluation.mine import mine_pairing
    pairing = cg.Collection.open(collection).sentences("train")
    mine_pairing(loaded.matcher, loaded.inputs, pairing, texts=2, images=2)

    from fastapi.testclient import TestClient
    from calligram.serve.server import create_app
    with TestClient(create_app(searcher), base_url="http://localhost") as client:
        assert client.get("/api/search", params={"q": "a red disc"}).status_code == 200

loaded = cg.load(run)
cg.export_onnx(loaded.matcher, loaded.inputs, Path(out) / "onnx")
print(json.dumps(found))
"""


def test_another_process_uses_the_classes_for_everything(run, code, tiny, tmp_path, preloaded):
    done = preloaded.run(EVERYTHING, code, run, tiny.folder, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["own"] == cg.load(run).evaluate("test", device="cpu").retrieval.rsum
    assert (tmp_path / "onnx" / "text.onnx").is_file()


def test_matchers_are_trained_and_joined_to_an_ensemble(run, own, tiny, tmp_path):
    inputs = cg.load(run).inputs
    small = {"inputs": inputs, "epochs": 1, "batch": 6, "device": "cpu"}
    for seed in (0, 1):
        torch.manual_seed(seed)
        matcher = own.Own(own.OwnSettings(len(inputs.texts)))
        trained = cg.fit(matcher, tiny, out=tmp_path / f"run{seed}", loss=hinge, **small)
        assert trained.evaluate("dev", device="cpu").images == 6
        assert type(trained.matcher) is own.Own
        assert not torch.equal(trained.matcher.image.weight, cg.load(run).matcher.image.weight)
    fixed = cg.fit(own.Fixed(), tiny, out=tmp_path / "fixed", loss=hinge, **small)
    assert fixed.evaluate("test", device="cpu").images == 6
    cg.train("ensemble", tiny, tmp_path / "both", f"runs={tmp_path / 'run0'},{tmp_path / 'run1'}")
    assert cg.load(tmp_path / "both").evaluate("test", device="cpu").images == 6


def hinge(scores, targets):
    """A loss of the caller."""
    return (0.2 - scores * targets).clamp(min=0).mean()


def test_the_command_line_imports_code_only_when_asked(run, code, tiny, preloaded):
    def command(*arguments):
        """Run the command in a process that has imported none of our code."""
        return preloaded.run("from calligram.cli.main import main; main()", *arguments)

    negatives = run.parent / "negatives"
    refused = command("mine", run, tiny.folder, "--out", negatives)
    assert refused.returncode == 2
    assert f"--import {code.stem} VERB" in " ".join(refused.stderr.split())
    done = command("--import", code, "mine", run, tiny.folder, "--out", negatives)
    assert done.returncode == 0, done.stderr
    assert negatives.is_dir()
    checked = command("check", run)  # its files are whole
    assert checked.returncode == 0, checked.stdout
    assert "the matcher was not loaded" in " ".join(checked.stderr.split())


@pytest.mark.parametrize(
    ("name", "message"),
    [("no_such_module_here", "there is no installed module with this name"), ("nowhere.py", "there is no such file")],
)
def test_code_that_is_missing_is_refused(name, message):
    with pytest.raises(cg.UserError, match=f"--import {name}: {message}"):
        import_code(name)


def test_a_file_does_not_replace_a_module(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('imported')")
    with pytest.raises(cg.UserError, match="another module has the name 'json' already; rename the file"):
        import_code(str(tmp_path / "json.py"))


def test_a_reader_from_outside_is_used(own, tmp_path):
    (tmp_path / "source").mkdir()
    with pytest.raises(cg.UserError, match="unknown format 'own-formt'; did you mean 'own-format'"):
        cg.import_collection("own-formt", tmp_path / "source", tmp_path / "out")
    assert READERS["own-format"] is own.read_own


def test_a_run_that_does_not_know_its_collection_asks_for_it(run, tiny, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    (moved / "run.json").write_text("{}")
    with pytest.raises(cg.UserError, match=r"does not know where its collection is .*give it as collection="):
        cg.load(moved).evaluate("test")
    assert cg.load(moved).evaluate("test", tiny).as_dict() == cg.load(run).evaluate("test", tiny.folder).as_dict()


class NothingToLearn(Objective):
    def terms(self, matcher, batch, images, texts):
        raise AssertionError("a step was taken")


def test_a_matcher_without_parameters_is_evaluated_and_saved(own, run, tmp_path):
    from calligram.training.loop import train

    made, matcher = Run.create(tmp_path / "run", {}), own.Fixed()
    made.describe(matcher, cg.load(run).inputs)
    stage = Stage("all", 3, NothingToLearn(), [], torch.optim.SGD, 0.1)
    best = train(matcher, [stage], made, lambda matcher: {"rsum": 5.0}, loop=Loop())
    assert best["rsum"] == 5.0
    assert isinstance(cg.load(tmp_path / "run").matcher, own.Fixed)
    assert train(matcher, [stage], made, lambda matcher: {"rsum": 4.0}, loop=Loop())["rsum"] == 5.0  # is finished
