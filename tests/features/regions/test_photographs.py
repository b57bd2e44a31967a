"""EdgeBoxes and YOLOX on twenty photographs with annotated boxes."""

from __future__ import annotations

import tarfile

import pytest

from calligram.data.readers.catalog import import_collection
from calligram.evaluation.proposals import proposal_recall
from calligram.features.regions.extract import ExtractionTask, add_regions
from calligram.features.regions.proposers import load_proposer


@pytest.fixture(scope="module")
def photographs(assets, tmp_path_factory):
    """Twenty images of Flickr8k's test split with their captions and entities, in the same layout."""
    folder, whole = tmp_path_factory.mktemp("photographs"), assets / "flickr8k"
    ids = sorted((whole / "test.txt").read_text().split())[:20]
    numbers = {i.split("_")[0] for i in ids}
    (folder / "test.txt").write_text("\n".join(ids))
    for name in ("captions.tsv", "sizes.csv"):
        heading, *lines = (whole / name).read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if line.split("\t")[0].split(",")[0].split(".")[0] in ids]
        (folder / name).write_text("\n".join([heading, *kept]), encoding="utf-8")
    with tarfile.open(folder / "images-0.tar", "w") as target:
        for file in sorted(whole.glob("images-*.tar")):
            with tarfile.open(file) as source:
                for member in source:
                    if member.name.split(".")[0] in ids:
                        target.addfile(member, source.extractfile(member))
    with tarfile.open(whole / "entities.tar.gz") as source:
        for member in source:
            if member.name.split("/")[-1].split(".")[0] in numbers:
                source.extract(member, folder, filter="data")
    collection, _ = import_collection("flickr8k", folder, folder / "collection")
    assert collection.splits() == {"test": 20}
    return collection


def test_recall_on_photographs_is_as_high_as_measured(photographs, assets):
    yolox = load_proposer(str(assets / "models" / "yolox_nano.onnx"), 100)
    after = add_regions(photographs, ExtractionTask(load_proposer("edgeboxes", 100), "edgeboxes", 100)).collection
    after = add_regions(after, ExtractionTask(yolox, "yolox", 100)).collection
    edges, detector, union = proposal_recall(after, "test", counts=(10, 36, 100)).rows
    assert edges.recall[100] > 50
    assert detector.recall[10] > 40
    assert detector.recall[100] > 60
    assert union.recall[100] > detector.recall[100]


def test_a_detector_finds_the_classes_that_captions_mention(photographs, assets):
    yolox = load_proposer(str(assets / "models" / "yolox_nano.onnx"), 36)
    words = {"person": ("man", "woman", "boy", "girl", "people", "child", "person"), "dog": ("dog", "puppy")}
    pairing = photographs.sentences("test")
    image, text = pairing.matches.pairs()
    right = 0
    for row in range(20):
        label = yolox(photographs.pictures.open(row)).labels[0]
        spoken = " ".join(pairing.texts.strings[t] for t in text[image == row]).lower()
        right += any(word in spoken for word in words.get(label, (label,)))
    assert right >= 15
