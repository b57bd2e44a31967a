"""Adaptive offline quintuplets: Chen et al., "Adaptive offline quintuplet loss for image-text matching" (2020).

Round 1 trains with the hardest negatives of each batch. Its best matcher mines harder negatives from the whole training
split. Round 2 starts again from the initial weights and uses both kinds of negatives (aoq, Eq. 5).

    calligram scenes data/scenes
    python examples/aoq.py data/scenes runs/aoq

For photographs, give --backbone with a vision model. Any matcher of cg.models can take the place of bfan.
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
    parser.add_argument("--epochs", type=int, default=15, help="epochs of each round")
    given = parser.parse_args()

    # The towers: grid cells of the image, and the states of a bidirectional GRU.
    image = cg.ImageSettings(backbone=given.backbone)
    text = cg.TextSettings(network="gru", word_dim=300, hidden=256, bidirectional=True, dropout=0.2, word_dropout=0.1)

    # BFAN: attention between cells and words that keeps only relevant parts. The paper adds AOQ to it and to others.
    matcher = cg.models.BFANSettings(focal="equal")

    online = cg.terms.Ranking(margin=0.2, top_k=1)  # Eq. 2: the hardest negative of the batch
    offline = cg.terms.Offline(loss="adaptive", share=0.002, margin=0.2, alpha=0.3, beta=1.5)  # Eq. 5

    # The hardest negatives teach little at first, so a warm-up with all negatives begins each round.
    warmup = min(3, given.epochs - 1)
    stages = [
        cg.stage("round 1", without=["offline"], resets_best=True),
        cg.stage("round 2", without=["ranking"], on_start=["mine", "restart"], resets_best=True),
    ]

    run = cg.fit(
        matcher,
        given.collection,
        out=given.out,
        image=image,
        text=text,
        terms=[online, offline],
        stages=stages,
        dim=256,
        batch=64,
        epochs=given.epochs,
        warmup_epochs=warmup,
        lr=5e-4,
    )
    found = run.evaluate("test").retrieval
    print(f"image to text R@1 {found.i2t.r1:.1f}, text to image R@1 {found.t2i.r1:.1f}, rsum {found.rsum:.1f}")


if __name__ == "__main__":
    main()
