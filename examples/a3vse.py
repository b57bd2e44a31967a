"""A3VSE: Huang et al., "Annotation efficient cross-modal retrieval with adversarial attentive alignment" (2019).

Few images have captions. The others get pseudo-sentences made of the classes of their regions, "brown dog green tree".
Discriminators align captioned images, captions, other images and pseudo-sentences (a3vse, Eqs. 3-9).

    calligram scenes data/scenes
    python examples/a3vse.py data/scenes runs/a3vse

Scenes know their objects ("truth"). For photographs, find regions with "calligram regions" and a detector with class
names, give their name with --regions, and give --backbone with a vision model.
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
    parser.add_argument("--regions", default="truth", help="name of the regions whose classes make pseudo-sentences")
    parser.add_argument("--share", type=float, default=0.2, help="share of the training images that keep captions")
    parser.add_argument("--epochs", type=int, default=20)
    given = parser.parse_args()

    # The data: one caption for a share of the training images, pseudo-sentences for the others (Secs. 4.1 and 4.3).
    sparse = cg.SparseSettings(images=given.share, captions=1)
    pseudo = cg.PseudoSettings(sources=("regions",), region_source=given.regions, beta=0.8, margin=0.3)

    # The towers: grid cells of the image, and the states of an LSTM.
    image = cg.ImageSettings(backbone=given.backbone)
    text = cg.TextSettings(network="lstm", word_dim=300, hidden=512, min_count=1, dropout=0.2, word_dropout=0.1)

    # Attention over regions and over words by their context, with three heads each (Eq. 1).
    matcher = cg.models.A3VSESettings(attention="context", heads=3, context=512)

    # The paper ranks with the hardest negatives: cg.terms.Ranking(margin=0.2). InfoNCE works better in our experiments.
    ranking = cg.terms.InfoNCE(temperature=0.07)
    adversarial = cg.terms.Adversarial(intra=(0.2, 0.1), cross=(0.5, 0.5), trans=(0.3, 0.3))  # Eqs. 4-8

    run = cg.fit(
        matcher,
        given.collection,
        out=given.out,
        sparse=sparse,
        pseudo=pseudo,
        image=image,
        text=text,
        terms=[ranking, adversarial],
        dim=512,
        epochs=given.epochs,
        lr=5e-4,
    )
    found = run.evaluate("test").retrieval
    print(f"image to text R@1 {found.i2t.r1:.1f}, text to image R@1 {found.t2i.r1:.1f}, rsum {found.rsum:.1f}")


if __name__ == "__main__":
    main()
