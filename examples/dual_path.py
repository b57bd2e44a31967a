"""Dual-path networks: Zheng et al., "Dual-path convolutional image-text embeddings with instance loss" (2020).

An image CNN and a text CNN end in one classifier with one class for each image and its captions: the instance loss.
Stage I trains the text CNN on it while the backbone is frozen. Stage II trains everything, also on a ranking loss.

    calligram scenes data/scenes
    python examples/dual_path.py data/scenes runs/dual-path

For photographs, give --backbone with a vision model. For person search, add groups="identity" to cg.fit.
"""

from __future__ import annotations

import argparse

import calligram as cg


def main() -> None:
    """Train and evaluate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("collection", help="folder of a collection")
    parser.add_argument("out", help="folder for the run")
    parser.add_argument("--backbone", default="", help="folder or hub name of a vision model; a small CNN without it")
    parser.add_argument("--epochs", type=int, default=12, help="epochs of each stage")
    given = parser.parse_args()

    # The towers: a text CNN over word vectors whose position is shifted at random (Sec. III-B). (3, 8, 36, 3) blocks
    # give the 152 layers of the largest text CNN; (3, 4, 6, 3) give 50 layers. One block in each group is a small one.
    image = cg.ImageSettings(backbone=given.backbone, crop=0.5, jitter=0.3)
    text = cg.TextSettings(network="cnn", word_dim=300, dropout=0.2, cnn=cg.CNNSettings(blocks=(1, 1, 1, 1)))

    # The head of the paper: FC, batch norm, ReLU, FC (Eqs. 1 and 3). The score is the cosine of two vectors.
    matcher = cg.models.VSESettings(head="paper")

    ranking = cg.terms.Ranking(margin=1, top_k=1)  # Eq. 4
    instance = cg.terms.Instance(weights=(1, 1), dropout=0.5)  # Eqs. 5-8

    # The two stages of Sec. V. A stage changes settings by the keys that "calligram show dual-path" prints.
    end_to_end = {"image.train": bool(given.backbone), "optim.lr_scale": ("image:0.3",)}
    stages = [
        cg.stage("stage I", without=["ranking"], lr=1e-3),
        cg.stage("stage II", resets_best=True, lr=5e-4, changes=end_to_end),
    ]

    run = cg.fit(
        matcher,
        given.collection,
        out=given.out,
        image=image,
        text=text,
        terms=[ranking, instance],
        stages=stages,
        dim=512,
        epochs=given.epochs,
    )
    found = run.evaluate("test").retrieval
    print(f"image to text R@1 {found.i2t.r1:.1f}, text to image R@1 {found.t2i.r1:.1f}, rsum {found.rsum:.1f}")


if __name__ == "__main__":
    main()
