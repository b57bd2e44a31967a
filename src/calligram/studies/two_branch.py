"""Claims of the two-branch paper, as rows that can be run.

Features of images and of regions are those of a frozen EfficientNet-Lite2. Text vectors have 2000 principal components
instead of the 6000 of the paper, and phrase networks are trained on 3,000 sets of 100 pairs. The word vectors of the
paper were trained on news and are not available. Other ones are trained first, on captions of other images than those
of dev and test: ``calligram words $CALLIGRAM_ASSETS/text/flickr30k-captions.txt.gz data/words.txt``.

Phrases are trained with about ten positives for each truth region and evaluated with the 200 EdgeBoxes of the paper.
Both are found first, with their features, which all runs then read from one file:
``calligram regions data/flickr8k --proposals edgeboxes --top 200 --size 448 --backbone NETWORK`` and
``calligram regions data/flickr8k --proposals edgeboxes-dense --top 400 --split train --size 448 --backbone NETWORK``,
where NETWORK is ``$CALLIGRAM_ASSETS/models/efficientnet_lite2_256``.

Rows "ours" have boxes of EdgeBoxes and of a detector, the classes of the detector as features, and boxes that vote for
each other. With DETECTOR for ``$CALLIGRAM_ASSETS/models/yolox_nano.onnx``:
``calligram regions data/flickr8k --proposals edgeboxes+DETECTOR --top 200 --size 448 --backbone NETWORK --detector
DETECTOR --name union`` and
``calligram regions data/flickr8k --proposals edgeboxes-dense+DETECTOR --top 500 --split train --size 448 --backbone
NETWORK --detector DETECTOR --name union-dense``.

EdgeBoxes needs an OpenCV with contributed modules. Where a GPU machine has none, another machine runs these commands
without ``--size``, ``--backbone`` and ``--detector``, and with ``--save-boxes NAME.parquet``. The GPU machine runs
``calligram regions data/flickr8k --proposals NAME.parquet --size 448 --backbone NETWORK``, for the unions with
``--detector DETECTOR``. A file holds the name of its regions.
"""

from __future__ import annotations

from calligram.studies.claims import ASSETS, Claim, ClaimKind, Row, Study, Table

_NETWORK = f"${ASSETS}/models/efficientnet_lite2_256"
_WORDS = "text.vectors=data/words.txt"
_IMAGES = (f"image.backbone={_NETWORK}", "image.views=ten")
_TRAINED = (*_IMAGES, _WORDS)
_RANKING_ONLY = (*_TRAINED, "extra_pairs=none")
_SINGLE_DIRECTION = "neighbourhood.weights=0,1,0,0"
_LINEAR = "two-branch.layers=1"


def _constraints(epochs: int, lr: float, weights: str) -> tuple[str, ...]:
    """Return the settings of a second stage with neighbourhood constraints, whose best epoch is selected."""
    return (
        "stages.1.name=ranking", "stages.2.name=constraints", f"stages.2.epochs={epochs}", f"stages.2.lr={lr}",
        f"stages.2.neighbourhood.weights={weights}", "stages.2.resets_best=true",
    )  # fmt: skip


_COCO = "MS-COCO pictures, captions and the features of a VGG19"

SENTENCE_ROWS = (
    Row("neighbourhood sampling", "two-branch", _TRAINED),
    Row("bi-directional", "two-branch", _RANKING_ONLY),
    Row("CCA, HGLMM", "cca", (*_IMAGES, _WORDS)),
    Row("constraints", "two-branch", (*_TRAINED, *_constraints(3, 0.0001, "1,2,0,0.2"))),
    Row("single direction", "two-branch", (*_RANKING_ONLY, _SINGLE_DIRECTION)),
    Row("linear, bi-directional", "two-branch", (*_RANKING_ONLY, _LINEAR)),
    Row("linear, single direction", "two-branch", (*_RANKING_ONLY, _LINEAR, _SINGLE_DIRECTION)),
    Row("random extra triplets", "two-branch", (*_TRAINED, "extra_pairs=random")),
    Row("similarity network", "two-branch-similarity", _TRAINED),
    Row("CCA, mean vector", "cca", (*_IMAGES, _WORDS, "text.fitted.kind=mean"), deterministic=True),
    Row("CCA, GMM", "cca", (*_IMAGES, _WORDS, "text.fitted.kind=gmm")),
    Row("CCA, GMM and HGLMM", "cca", (*_IMAGES, _WORDS, "text.fitted.kind=gmm+hglmm")),
    Row("CCA, tf-idf", "cca", (*_IMAGES, "text.fitted.kind=tfidf"), deterministic=True),
    Row("tf-idf", "two-branch", (*_IMAGES, "text.fitted.kind=tfidf")),
    Row("batch statistics", "two-branch", (*_TRAINED, "two-branch.statistics=batch")),
)

SENTENCE_CLAIMS = (
    Claim("Nonlinear branches beat linear ones (Table 2).", "bi-directional", "linear, bi-directional"),
    Claim("Ranking both ways beats one way (Table 2, nonlinear).", "bi-directional", "single direction"),
    Claim("Ranking both ways beats one way (Table 2, linear).", "linear, bi-directional", "linear, single direction"),
    Claim("Neighbourhood sampling beats standard triplets (Table 2).", "neighbourhood sampling", "bi-directional"),
    Claim(
        "Neighbourhood sampling beats as many random triplets (Sec. 4.4, there for phrases).",
        "neighbourhood sampling", "random extra triplets",
    ),
    Claim(
        "Neighbourhood constraints add a little to sampling across modalities (Table 2; not significantly, Sec. 5.4).",
        "constraints", "neighbourhood sampling", kind="equivalence",
    ),
    Claim("The nonlinear network beats CCA on the same features (Table 2).", "bi-directional", "CCA, HGLMM"),
    Claim("The linear network does not beat CCA (Sec. 5.4).", "CCA, HGLMM", "linear, bi-directional",
          kind="equivalence", one_sided=True),
    Claim("CCA: HGLMM beats the mean vector (Table 2).", "CCA, HGLMM", "CCA, mean vector"),
    Claim("CCA: GMM and HGLMM together beat HGLMM (Table 2).", "CCA, GMM and HGLMM", "CCA, HGLMM"),
    Claim("CCA: HGLMM beats GMM.", "CCA, HGLMM", "CCA, GMM"),
    Claim("HGLMM beats tf-idf (Sec. 4.3: very similar).", "neighbourhood sampling", "tf-idf", kind="equivalence"),
    Claim(
        "The similarity network fails at sentences (Table 2).", "neighbourhood sampling", "similarity network",
        expects_collapse=True,
    ),
    Claim(
        "Statistics of the test batches are slightly better than those of training (footnote 3).",
        "batch statistics", "neighbourhood sampling",
    ),
    Claim("The same trends on MS-COCO (Table 3).", "", "", needs=_COCO),
    Claim(
        "Neighbourhood sampling helps sentences find sentences (Table 4).",
        "neighbourhood sampling", "bi-directional", metric="t2t.r1",
    ),
    Claim(
        "Neighbourhood constraints help them further (Table 4).",
        "constraints", "neighbourhood sampling", metric="t2t.r1",
    ),
    Claim("The same on MS-COCO (Table 4).", "", "", needs=_COCO),
)  # fmt: skip

_PHRASES = (
    f"region.backbone={_NETWORK}", "region.training=edgeboxes-dense", _WORDS, "lr=0.003", "chunker_captions=0",
)  # fmt: skip
_TRIPLETS = (*_PHRASES, "sets=1000", "epochs=3")
_SINGLE_POSITIVE = (*_TRIPLETS, "extra_pairs=none", "positives=single")
_NEIGHBOURHOOD_SAMPLING = (*_TRIPLETS, "extra_pairs=neighbours")
# The same branches as those of the embedding network, which the preset has.
_PAIRS = (
    *_PHRASES, "matcher=two-branch-similarity", "two-branch-similarity.hidden=1024", "two-branch-similarity.dropout=0",
    "terms=logistic", "sets=1000", "epochs=3",
)  # fmt: skip
_LINEAR_SIMILARITY = "two-branch-similarity.layers=1"

EMBEDDING_ROWS = {
    "augmented": (*_TRIPLETS, "extra_pairs=none"),
    "bi-directional": _SINGLE_POSITIVE,
    "single direction": (*_SINGLE_POSITIVE, _SINGLE_DIRECTION),
    "linear, single direction": (*_SINGLE_POSITIVE, _SINGLE_DIRECTION, _LINEAR),
    "neighbourhood sampling": _NEIGHBOURHOOD_SAMPLING,
    "constraints": (*_NEIGHBOURHOOD_SAMPLING, *_constraints(1, 0.0003, "1,4,0.1,0.1")),
    "CCA": (*_PHRASES, "matcher=cca"),
}
"""settings of the rows of Table 1 with an embedding, by name"""
SIMILARITY_ROWS = {
    "similarity, augmented": _PAIRS,
    "similarity, single": (*_PAIRS, "positives=single"),
    "similarity, linear, augmented": (*_PAIRS, _LINEAR_SIMILARITY),
    "similarity, linear, single": (*_PAIRS, "positives=single", _LINEAR_SIMILARITY),
}
"""settings of the rows of Table 1 with a similarity network"""


def _phrases(name: str, *changes: str) -> Row:
    return Row(f"phrases: {name}", "two-branch-phrases", changes, needs="proposals")


def _names(*names: str, geometry: bool = False) -> tuple[str, ...]:
    return tuple(f"phrases: {name}{', geometry' if geometry else ''}" for name in names)


_DETECTOR = f"${ASSETS}/models/yolox_nano.onnx"
_OURS = (
    f"region.backbone={_NETWORK}", "region.proposals=union", "region.training=union-dense",
    f"region.proposer=edgeboxes+{_DETECTOR}", f"region.detector={_DETECTOR}", "region.geometry=10", "region.vote=20",
    _WORDS, "text.fitted.kind=mean", "chunker_captions=0", "lr=0.003", "region_negatives=50", "sets=1000", "epochs=3",
)  # fmt: skip

PHRASE_ROWS = (
    *(_phrases(name, *changes) for name, changes in {**EMBEDDING_ROWS, **SIMILARITY_ROWS}.items()),
    _phrases("random extra triplets", *_TRIPLETS, "extra_pairs=random"),
    _phrases("similarity, one FC layer", *_PAIRS, "two-branch-similarity.heads=1"),
    _phrases("similarity, two FC layers", *_PAIRS, "two-branch-similarity.heads=2"),
    *(
        _phrases(f"{name}, geometry", *changes, "region.geometry=10")
        for name, changes in {**EMBEDDING_ROWS, **SIMILARITY_ROWS}.items()
    ),
    _phrases("ours", *_OURS),
    _phrases("ours, no votes", *_OURS, "region.vote=0"),
)


def _better(text: str, better: str, worse: str, kind: ClaimKind = "superiority") -> Claim:
    return Claim(text, f"phrases: {better}", f"phrases: {worse}", metric="localization.r1", kind=kind)


PHRASE_CLAIMS = (
    _better("Phrases: nonlinear branches beat linear ones (Table 1).", "single direction", "linear, single direction"),
    _better("Phrases: ranking both ways beats one way (Table 1).", "bi-directional", "single direction"),
    _better("Phrases: augmented positives beat the truth region alone (Table 1).", "augmented", "bi-directional"),
    _better(
        "Phrases: neighbourhood sampling beats standard triplets (Table 1).", "neighbourhood sampling", "augmented"
    ),
    _better(
        "Phrases: neighbourhood sampling beats as many random triplets (Sec. 4.4).",
        "neighbourhood sampling", "random extra triplets",
    ),
    _better(
        "Phrases: constraints lose a little R@1 (Table 1).", "neighbourhood sampling", "constraints"
    ),
    _better(
        "Phrases: the similarity network, too, gains by nonlinear branches (Table 1).",
        "similarity, augmented", "similarity, linear, augmented",
    ),
    _better(
        "Phrases: and more by augmented positives (Table 1).", "similarity, augmented", "similarity, single"
    ),
    _better(
        "Phrases: the similarity network is as good as the embedding network (Table 1: 51.05 and 51.03).",
        "similarity, augmented", "neighbourhood sampling", kind="equivalence",
    ),
    _better(
        "Phrases: one FC layer after the product is much worse than three (Sec. 4.4).",
        "similarity, augmented", "similarity, one FC layer",
    ),
    _better(
        "Phrases: three FC layers beat two (Sec. 4.4: almost on par).",
        "similarity, augmented", "similarity, two FC layers", kind="equivalence",
    ),
    _better("Phrases: the embedding network beats CCA.", "neighbourhood sampling", "CCA"),
    _better("Phrases, ours: a box's place and size help.", "augmented, geometry", "augmented"),
    _better("Phrases, ours: boxes that overlap and vote for each other help.", "ours", "ours, no votes"),
    _better("Phrases, ours: boxes and classes of a detector help.", "ours, no votes", "augmented, geometry"),
)  # fmt: skip

COMBINED_ROWS = (
    Row("weighted distance", "combined", (
        "sentences=row:constraints", "phrases=row:phrases: neighbourhood sampling",
    ), needs="proposals"),
)  # fmt: skip

COMBINED_CLAIMS = (
    Claim(
        "Region-phrase distances add a little to the image-sentence distance (Table 5).",
        "weighted distance", "constraints",
    ),
)  # fmt: skip

TABLES = {
    "Table 1: phrases": Table(
        (_names(*EMBEDDING_ROWS), _names(*SIMILARITY_ROWS)),
        "In the paper, several positive regions for each phrase add 5 points of R@1, and neighbourhood sampling adds "
        "2; the similarity network is as good as the embedding network. The folded rows with geometry also have the "
        "place and the size of a region as features (`region.geometry`), which the paper does not use.",
        (
            _names("neighbourhood sampling", "random extra triplets"),
            _names("similarity, augmented", "similarity, one FC layer", "similarity, two FC layers"),
            _names("augmented", "augmented, geometry"),
            _names("augmented, geometry", "ours, no votes", "ours"),
            _names(*EMBEDDING_ROWS, geometry=True),
            _names(*SIMILARITY_ROWS, geometry=True),
        ),
        sources=("Table 1",),
        metric="localization.r1",
    ),
    "Tables 2 and 5: sentences": Table(
        (
            (
                "bi-directional", "single direction", "linear, bi-directional", "linear, single direction",
                "neighbourhood sampling", "constraints", "similarity network",
            ),
            ("CCA, HGLMM", "CCA, mean vector", "CCA, GMM and HGLMM"),
            ("constraints", "weighted distance"),
        ),
        "In the paper, two layers, ranking in both directions and neighbourhood sampling each add to the recalls, and "
        "the similarity network fails. Flickr8k has a fifth of the training images of Flickr30K, and "
        "EfficientNet-Lite2 replaces VGG-19.",
        (
            ("neighbourhood sampling", "random extra triplets", "tf-idf", "batch statistics"),
            ("CCA, HGLMM", "CCA, GMM", "CCA, tf-idf"),
        ),
        sources=("Table 2", "Table 5"),
    ),
    "Table 4: sentences that find sentences": Table(
        (("bi-directional", "neighbourhood sampling", "constraints"),),
        "In the paper, sampling and then constraints each help a sentence to find the other sentences of its image.",
        sources=("Table 4",),
        metric="t2t.r1",
    ),
}  # fmt: skip

TWO_BRANCH = Study(
    "two-branch",
    (*SENTENCE_ROWS, *PHRASE_ROWS, *COMBINED_ROWS),
    (*SENTENCE_CLAIMS, *PHRASE_CLAIMS, *COMBINED_CLAIMS),
    TABLES,
)
