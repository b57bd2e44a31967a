"""Two-branch networks: Wang et al., "Learning two-branch neural networks for image-text matching tasks" (2019).

Image features and text vectors pass through two branches of fully connected layers into one space. The loss ranks
matches before other pairs in both directions, and ranks captions of one image near each other (two-branch, Eq. 6).

    calligram scenes data/scenes
    python examples/two_branch.py data/scenes runs/two-branch

For photographs, give --backbone with a vision model. The paper's text features are Fisher vectors: give --words with a
file of word vectors (word2vec, GloVe or fastText). Without it, texts are tf-idf vectors.
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
    parser.add_argument("--words", default="", help="file of word vectors, for Fisher vectors")
    parser.add_argument("--epochs", type=int, default=20)
    given = parser.parse_args()

    # The two towers: features of the image, and one fitted vector for each text (Sec. 5.1).
    image = cg.ImageSettings(backbone=given.backbone)
    fitted = cg.TextVectorSettings(kind="hglmm" if given.words else "tfidf", centres=30, pca=2000)
    text = cg.TextSettings(network="vectors", vectors=given.words, fitted=fitted)

    # Each branch: FC, batch norm, ReLU, dropout, FC, unit length (Sec. 3.2.1).
    matcher = cg.models.TwoBranchSettings(hidden=2048, layers=2, dropout=0.5)

    # Weights of image anchors, text anchors, image neighbourhoods and text neighbourhoods: lambda 1 to 4.
    loss = cg.terms.Neighbourhood(weights=(1, 2, 0, 0.2), margin=0.1, top_k=50)

    run = cg.fit(
        matcher,
        given.collection,
        out=given.out,
        image=image,
        text=text,
        terms=[loss],
        dim=512,
        batch=500,
        extra_pairs="neighbours",  # a second caption of every image in the batch (Sec. 3.2.3)
        epochs=given.epochs,
        lr=1e-3,
        optim=cg.Optimisation(optimizer="adam", weight_decay=0, schedule="step", step_epochs=10),
    )
    found = run.evaluate("test").retrieval
    print(f"image to text R@1 {found.i2t.r1:.1f}, text to image R@1 {found.t2i.r1:.1f}, rsum {found.rsum:.1f}")


if __name__ == "__main__":
    main()
