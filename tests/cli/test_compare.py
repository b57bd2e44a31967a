from __future__ import annotations

import json
import shutil

import pytest
import torch
from PIL import Image

from calligram.checksums import sealed
from calligram.cli.compare import _p_value
from calligram.features.images.pixels import PixelInput
from calligram.features.images.region_input import RegionInput
from calligram.features.inputs import Inputs
from calligram.features.regions.extract import ExtractionTask, add_regions
from calligram.features.regions.proposers import load_proposer
from calligram.features.regions.region_features import RegionCrops
from calligram.features.texts.text_vectors import TextVectorInput, TextVectorSettings
from calligram.models import catalog
from calligram.models.catalog import INPUTS_FOLDER, MATCHER_FILE, RUN_FILE, WEIGHTS_FILE
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.two_branch import TwoBranchEmbedding, TwoBranchSettings
from calligram.recipes.parts.run import train_preset
from calligram.scenes.generate import generate_scenes


@pytest.fixture(scope="module")
def second(calligram, tiny, small, tmp_path_factory):
    """A second run, of another seed and length."""
    out = tmp_path_factory.mktemp("second") / "other"
    done = calligram("train", "vse", tiny.folder, "--out", out, "--set", "epochs=1", "--set", "seed=3", *small)
    assert done.returncode == 0, done.stderr
    return out


def test_the_table_has_both_runs_and_the_json_has_the_numbers_of_evaluate(calligram, trained, second, tiny, tmp_path):
    asked = ["compare", trained[0], second, tiny.folder]
    found = json.loads(calligram(*asked, "--json").stdout)
    assert found["runs"] == ["run", "other"]
    assert (found["split"], found["by"], found["texts"], found["pictures"]) == ("test", "identities", 14, [])
    for name, run in (("first", trained[0]), ("second", second)):
        alone = json.loads(calligram("evaluate", run, tiny.folder, "--json").stdout)
        assert found["rsum"][name] == pytest.approx(alone["rsum"])
        for key in ("i2t", "t2i"):
            assert found[key][name] == pytest.approx(alone[key])
    by_image = json.loads(calligram(*asked, "--json", "--no-identities", "--split", "dev").stdout)
    assert "by" not in by_image
    assert by_image["split"] == "dev"
    printed = " ".join(calligram(*asked).stdout.split())
    for words in ("text to image (14)", "only other finds", f"{found['rsum']['difference']:+.1f}", "other minus run"):
        assert words in printed


@pytest.mark.parametrize(
    ("p", "shown", "style"), [(0.0001, "<0.001", "bold"), (0.03, "0.030", "bold"), (0.5, "0.500", "")]
)
def test_clear_p_values_are_bold_and_no_markup_is_printed(p, shown, style):
    """The screen prints strings as they are, so that markup in a cell would be read by people."""
    cell = _p_value(p)
    assert (cell.plain, cell.style) == (shown, style)


def test_figures_are_drawn(calligram, trained, second, tiny, tmp_path):
    done = calligram("compare", trained[0], second, tiny.folder, "--no-identities", "--out", tmp_path / "a" / "b")
    assert done.returncode == 0, done.stderr
    drawn = {file.name: file.stat().st_size for file in (tmp_path / "a" / "b").iterdir()}
    assert set(drawn) == {"images.png", "texts.png", "negatives.png", "ranks.png", "curves.png"}
    assert min(drawn.values()) > 3000
    assert "negatives.png" in done.stdout
    without = shutil.copytree(second, tmp_path / "without")
    (without / "metrics.jsonl").unlink()
    both = [shutil.copytree(without, tmp_path / "fitted"), without]
    done = calligram("compare", *both, tiny.folder, "--out", tmp_path / "c", "--json")
    assert [name.rpartition("/")[2] for name in json.loads(done.stdout)["pictures"]] == [
        "images.png", "texts.png", "negatives.png", "ranks.png",
    ]  # fmt: skip


def test_runs_with_the_same_folder_name_are_named_by_their_paths(calligram, trained, tiny, tmp_path):
    other = shutil.copytree(trained[0], tmp_path / "later" / trained[0].name)
    found = json.loads(calligram("compare", trained[0], other, tiny.folder, "--json").stdout)
    assert found["runs"] == [f"{trained[0].parent.name}/run", "later/run"]
    assert found["rsum"]["difference"] == 0
    assert found["t2i"]["found_by_one"]["1"] == {"first": 0, "second": 0, "p": 1.0}


def renamed(run, target, collection: str):
    about = json.loads((run / RUN_FILE).read_text())
    shutil.copytree(run, target)
    (target / RUN_FILE).write_text(json.dumps(sealed({**about, "collection": collection})))
    return target


def test_a_run_on_part_of_the_captions_can_be_compared_and_one_of_another_collection_not(
    calligram, trained, second, tiny, tmp_path
):
    sparse = renamed(second, tmp_path / "sparse", "tiny (10% of the images)")
    assert calligram("compare", trained[0], sparse, tiny.folder).returncode == 0
    foreign = renamed(second, tmp_path / "foreign", "tinytown")
    done = calligram("compare", trained[0], foreign, tiny.folder)
    assert done.returncode == 2
    assert "trained on the collection tinytown" in " ".join(done.stderr.split())


def test_other_runs_are_refused_with_the_reason(calligram, trained, second, tiny, tmp_path):
    phrases, untrained = tmp_path / "phrases", tmp_path / "untrained"
    texts = TextVectorInput.fit(["a red disc", "the snow"], None, TextVectorSettings(kind="tfidf"))
    regions = RegionInput(RegionCrops(PixelInput(16), 2), "grid", "grid", 20)
    torch.manual_seed(0)
    towers = ImageArchitecture(feature_dim=regions.dim), TextArchitecture("vectors", state_dim=texts.dim)
    phrases.mkdir()
    (phrases / RUN_FILE).write_text(json.dumps({"collection": "tiny"}))
    catalog.save(
        TwoBranchEmbedding(TwoBranchSettings(*towers, 4, hidden=8)), phrases / MATCHER_FILE, phrases / WEIGHTS_FILE
    )
    Inputs(regions, texts).save(phrases / INPUTS_FOLDER)
    shutil.copytree(second, untrained, ignore=shutil.ignore_patterns(WEIGHTS_FILE))
    (tmp_path / "file").touch()
    for message, *asked in (
        ("both runs are", trained[0], trained[0] / ".." / trained[0].name, tiny.folder),
        ("localizes phrases and", second, phrases, tiny.folder),
        ("give two runs of the same kind", phrases, second, tiny.folder),
        ("has no checkpoint yet", trained[0], untrained, tiny.folder),
        ("is not a run", tmp_path, second, tiny.folder),
        ("is not a collection", trained[0], second, tmp_path),
        ("is a file; give a folder", trained[0], second, tiny.folder, "--out", tmp_path / "file"),
    ):
        done = calligram("compare", *asked)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())


@pytest.fixture(scope="module")
def localizing(calligram, tmp_path_factory):
    """Scenes with proposals, and two runs that localize phrases: one trained for longer, with other proposals."""
    folder = tmp_path_factory.mktemp("localizing")
    scenes = generate_scenes(folder / "scenes", images=60, size=48)
    for method, top in (("edgeboxes", 10), ("grid", 20)):
        scenes = add_regions(scenes, ExtractionTask(load_proposer(method, top), method, top, None)).collection
    small = "dim=8", "two-branch.hidden=16", "text.fitted.kind=tfidf", "region.size=48", "chunker_captions=0"
    for name, *changes in (("short", "epochs=1", "sets=2", "region.proposals=grid"), ("long", "epochs=4", "lr=0.01")):
        train_preset("two-branch-phrases", scenes, folder / name, *small, *changes)
    return folder


def test_runs_that_localize_phrases_are_compared_phrase_by_phrase(calligram, localizing, tmp_path):
    asked = ["compare", localizing / "short", localizing / "long", localizing / "scenes"]
    done = calligram(*asked, "--json", "--out", tmp_path / "drawn")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["runs"] == ["short", "long"]
    assert found["pictures"] == [str(tmp_path / "drawn" / "phrases.png")]
    assert Image.open(found["pictures"][0]).width > 1000
    for name, run in (("first", "short"), ("second", "long")):
        alone = json.loads(calligram("evaluate", localizing / run, localizing / "scenes", "--json").stdout)
        assert found[name]["r1"] == pytest.approx(alone["r1"])
        assert found[name]["phrases"] == found["phrases"]
    only = found["found_by_one"]["1"]
    assert 100 * (only["second"] - only["first"]) / found["phrases"] == pytest.approx(found["difference"]["r1"])
    printed = " ".join(calligram(*asked).stdout.split())
    for words in (f"{found['phrases']} phrases", "upper bound", "only long finds", f"{found['difference']['r1']:+.1f}"):
        assert words in printed
    refused = calligram(*asked, "--identities")
    assert refused.returncode == 2
    assert "--identities is for runs that retrieve" in " ".join(refused.stderr.split())
