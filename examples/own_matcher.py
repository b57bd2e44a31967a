"""A matcher of your own: train it, measure it, search a folder of pictures with it, and export it to ONNX.

    calligram scenes data/scenes --images 300
    python examples/own_matcher.py data/scenes photos out

Later, another process needs the class too: "import own_matcher" before calligram.load, or on the command line
"calligram --import examples/own_matcher.py search out/library 'a dog'".
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

import calligram as cg


@dataclass(frozen=True)
class MineSettings:
    """Settings are saved with the weights."""

    vocabulary: int
    size: int = 64


@cg.matcher("mine")
class Mine(cg.EmbeddingMatcher):
    """Colours and shapes in 4 x 4 cells, and the sum of word vectors."""

    def __init__(self, settings: MineSettings) -> None:
        super().__init__()
        self.settings = settings
        self.cells = nn.Sequential(nn.Conv2d(3, 32, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.image = nn.Linear(32 * 16, settings.size)
        self.words = nn.Embedding(settings.vocabulary, settings.size, padding_idx=0)

    def encode_images(self, images: Tensor, mask: Tensor | None = None) -> cg.Encoded:
        """Encode pixels (N, 3, H, W)."""
        return cg.Encoded(self.image(self.cells(images)))

    def encode_texts(self, texts: Tensor, mask: Tensor | None = None) -> cg.Encoded:
        """Encode word ids (N, W); id 0 is padding."""
        return cg.Encoded(self.words(texts).sum(1))


def info_nce(scores: Tensor, targets: Tensor) -> Tensor:
    """A loss is any function of scores and targets: +1 match, -1 negative, 0 ignored."""
    logits = (scores / 0.07).masked_fill(targets == 0, float("-inf"))
    return -(logits.log_softmax(1)[targets > 0]).mean()


def main(collection: str, photos: str, out: str) -> None:
    """Train, evaluate, index, search, export."""
    inputs = cg.inputs(collection, image_size=64)
    matcher = Mine(MineSettings(len(inputs.texts)))
    run = cg.fit(matcher, collection, inputs=inputs, loss=info_nce, epochs=3, lr=1e-2, out=f"{out}/run")
    report = run.evaluate("test")
    print(f"text to image R@1 {report.retrieval.t2i.r1:.1f}")

    cg.index(run, photos, out=f"{out}/library")
    for hit in cg.Searcher.open(f"{out}/library").images("a dog", k=3, all=True).hits:
        print(hit.rank, f"{hit.score:.2f}", hit.path)
    cg.export_onnx(run.matcher, run.inputs, Path(out) / "onnx")


if __name__ == "__main__":
    main(*sys.argv[1:4])
