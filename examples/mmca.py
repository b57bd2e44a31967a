"""MMCA: Wei et al., "Multi-modality cross attention network for image and sentence matching" (2020).

Regions attend to regions and words to words; a second module attends over the regions and words of a pair together.
The vectors of the first module retrieve candidates, and the score of both modules reranks them.

    calligram scenes data/scenes
    python examples/mmca.py data/scenes runs/mmca

For photographs, give --backbone with a vision model and --encoder with a BERT-like text encoder, as in the paper.
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
    parser.add_argument("--encoder", default="", help="folder or hub name of a BERT-like encoder; a GRU without it")
    parser.add_argument("--epochs", type=int, default=15)
    given = parser.parse_args()

    # The towers: grid cells of the image, and the states of a text encoder or of a GRU.
    image = cg.ImageSettings(backbone=given.backbone)
    if given.encoder:
        text = cg.TextSettings(encoder=given.encoder)
    else:
        text = cg.TextSettings(network="gru", word_dim=300, hidden=512, bidirectional=True, dropout=0.2)

    # Self-attention and cross-attention with 16 heads; alpha is the weight of the cross-attention score (Sec. 3).
    matcher = cg.models.MMCASettings(heads=16, filters=256, alpha=0.2)

    # The paper has the triplet loss with the hardest negatives: cg.terms.Ranking(margin=0.2), after a warm-up.
    loss = cg.terms.InfoNCE(temperature=0.07)

    run = cg.fit(
        matcher,
        given.collection,
        out=given.out,
        image=image,
        text=text,
        terms=[loss],
        dim=256,
        batch=64,
        candidates=8,  # score the 8 nearest pairs of each item in the batch instead of all pairs
        dev_depth=20,
        epochs=given.epochs,
        lr=5e-4,
    )
    for depth in (0, 20):  # all pairs; then only the 20 candidates of each query that the vectors retrieve
        found = run.evaluate("test", depth=depth).retrieval
        print(f"depth {depth}: text to image R@1 {found.t2i.r1:.1f}, rsum {found.rsum:.1f}")


if __name__ == "__main__":
    main()
