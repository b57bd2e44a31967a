"""What the two-branch paper claims, as rows that can be run.

Sizes are smaller than the paper's, so that a row trains in minutes on a processor: 1024 numbers between layers instead
of 2048, and 2000 principal components of text vectors instead of 6000. Word vectors stand for the paper's, which were
trained on news and cannot be had; they come first, from captions of other pictures than those of dev and test:
``calligram words $CALLIGRAM_ASSETS/text/flickr30k-captions.txt.gz data/words.txt``.
"""

from __future__ import annotations

from calligram.recipes.claims import Claim, Row, Study
from calligram.recipes.provenance import ASSETS

_WORDS = "text.words=data/words.txt"
_IMAGES = (f"image.backbone=${ASSETS}/models/mobilenet_v2_1.0_224", "image.views=ten")
_TRAINED = (*_IMAGES, _WORDS, "hidden=1024")
_PLAIN = (*_TRAINED, "extra=none")
_COCO = "MS-COCO pictures, captions and the features of a VGG19"

SENTENCE_ROWS = (
    Row("neighbourhood sampling", "two-branch", _TRAINED),
    Row("bi-directional", "two-branch", _PLAIN),
    Row("CCA, HGLMM", "cca", (*_IMAGES, _WORDS)),
    Row("constraints", "two-branch", (*_TRAINED, "constraint_epochs=3")),
    Row("single direction", "two-branch", (*_PLAIN, "weights=0,1")),
    Row("linear, bi-directional", "two-branch", (*_PLAIN, "layers=1")),
    Row("linear, single direction", "two-branch", (*_PLAIN, "layers=1", "weights=0,1")),
    Row("random extra triplets", "two-branch", (*_TRAINED, "extra=random")),
    Row("similarity network", "two-branch-similarity", (*_TRAINED, "epochs=4")),
    Row("CCA, mean vector", "cca", (*_IMAGES, _WORDS, "text.vectors.kind=mean")),
    Row("CCA, GMM", "cca", (*_IMAGES, _WORDS, "text.vectors.kind=gmm")),
    Row("CCA, GMM and HGLMM", "cca", (*_IMAGES, _WORDS, "text.vectors.kind=gmm+hglmm")),
    Row("CCA, tf-idf", "cca", (*_IMAGES, "text.vectors.kind=tfidf")),
    Row("tf-idf", "two-branch", (*_IMAGES, "hidden=1024", "text.vectors.kind=tfidf")),
    Row("batch statistics", "two-branch", (*_TRAINED, "statistics=batch")),
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
        "constraints", "neighbourhood sampling",
    ),
    Claim("The nonlinear network beats CCA on the same features (Table 2).", "bi-directional", "CCA, HGLMM"),
    Claim("The linear network does not beat CCA (Sec. 5.4).", "CCA, HGLMM", "linear, bi-directional"),
    Claim("CCA: HGLMM beats the mean vector (Table 2).", "CCA, HGLMM", "CCA, mean vector"),
    Claim("CCA: GMM and HGLMM together beat HGLMM (Table 2).", "CCA, GMM and HGLMM", "CCA, HGLMM"),
    Claim("CCA: HGLMM beats GMM.", "CCA, HGLMM", "CCA, GMM"),
    Claim("HGLMM beats tf-idf (Sec. 4.3: very similar).", "neighbourhood sampling", "tf-idf"),
    Claim(
        "The similarity network fails at sentences (Table 2).", "neighbourhood sampling", "similarity network"
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

PHRASE_ROWS: tuple[Row, ...] = ()

PHRASE_CLAIMS: tuple[Claim, ...] = ()

TWO_BRANCH = Study("two-branch", (*SENTENCE_ROWS, *PHRASE_ROWS), (*SENTENCE_CLAIMS, *PHRASE_CLAIMS))
