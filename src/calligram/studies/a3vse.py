"""Claims of the A3VSE paper, as rows that can be run.

Regions are the cells of the grid of a frozen EfficientNet-Lite2. Word vectors replace those of the paper, as in the
two-branch study: ``calligram words $CALLIGRAM_ASSETS/text/flickr30k-captions.txt.gz data/words.txt``.

Pseudo-sentences come from a YOLOX with 80 classes, which gives few words. So labels of the whole image and words
predicted from captions of other images are added; some rows have one source only. Rows "regions" and "classes alone"
have the paper's kind of pseudo-sentence, from the detector: classes with colours, or classes only. Detect the regions
first: ``calligram regions data/flickr8k --proposals $CALLIGRAM_ASSETS/models/yolox_nano.onnx --name yolox``. Labels are
those of EfficientNet-Lite2, with the class names of MobileNetV2; the row "tags" has MobileNetV2. Rows named "again"
also use sentences that the run of an earlier row retrieves from captions of other images. For the row "found by
MiniLM", a ``vse`` with a frozen sentence encoder retrieves them.

All models have the same number of epochs. At every sparse level an epoch has half of the steps that all captions take,
as in the paper (a3vse, Sec. 4.2; ``sparse.length=half``): 117 steps on Flickr8k, in place of 234 with all captions. So
training costs the same at all sparse levels. The captions that a level keeps are drawn with the seed of the run.
"""

from __future__ import annotations

from calligram.studies.claims import ASSETS, Claim, Grid, Row, Study, Table

_NETWORK = f"${ASSETS}/models/efficientnet_lite2_256"
_NAMED_NETWORK = f"${ASSETS}/models/mobilenet_v2_1.0_224"
"""network with the same classes, whose files name them"""
_COMMON = (
    f"image.backbone={_NETWORK}", "text.vectors=data/words.txt", "precision=bf16", "epochs=10",
    "image.region_dropout=0.2", "image.dropout=0.2",
)  # fmt: skip
_SENTENCES = (
    "pseudo.sources=regions,labels,learnt", f"pseudo.backbone={_NETWORK}", f"pseudo.class_names={_NAMED_NETWORK}",
    "pseudo.shrink=5", "pseudo.sentences=6", "pseudo.words=6", "pseudo.beta=0.5",
)  # fmt: skip
_NO_ADVERSARIES = "terms=infonce"
_NO_PSEUDO = ("pseudo.images=none", _NO_ADVERSARIES)
_PIECES = ("matcher=vse", "text.vectors=", f"text.encoder=${ASSETS}/models/minilm", "text.word_dropout=0")
"""vectors of a sentence encoder that was trained on other text"""
_CLASSES_ALONE = ("pseudo.sources=regions", "pseudo.attributes=none", "pseudo.sentences=1")
_CORPUS = f"pseudo.corpus=${ASSETS}/text/flickr30k-captions.txt.gz"
_GRU = ("text.network=gru", "text.bidirectional=true")
MODELS: dict[str, tuple[str, ...]] = {
    "scan": ("matcher=scan", *_GRU, "scan.direction=i2t", "scan.temperature=4", "scan.sharpness=5"),
    "vse": ("matcher=vse", *_GRU),
    "dual-path": ("matcher=vse", "text.network=cnn", "text.cnn.blocks=1", "text.cnn.width=128"),
}
"""other models of the paper (Table 2), without pseudo pairs"""
_TWO_BRANCH = ("matcher=two-branch", *_GRU, "text.dropout=0")
LEVELS = tuple((images, captions) for images in (10, 20, 50) for captions in (1, 2, 5))
SPARSE, DENSER = "10% x 5", "50% x 2"
"""the two levels of Table 2"""


def _level(images: int, captions: int) -> str:
    return f"{images}% x {captions}"


def _sparse(level: str) -> tuple[str, ...]:
    """Return the settings of a level such as ``10% x 5``; none for ``100%``."""
    images, _, captions = level.partition("% x ")
    if not captions:
        return ()
    return f"sparse.images={int(images) / 100}", f"sparse.captions={captions}", "sparse.length=half"


def _row(level: str, *changes: str, name: str = "", pseudo: tuple[str, ...] = _SENTENCES) -> Row:
    return Row(f"{name}, {level}" if name else level, "a3vse", (*_COMMON, *_sparse(level), *pseudo, *changes))


_ABLATIONS: dict[str, tuple[str, ...]] = {
    "regions": ("pseudo.sources=regions",),
    "s_g": ("pseudo.sources=labels",),
    "no attention": ("a3vse.attention=mean",),
    "no adversaries": (_NO_ADVERSARIES,),
    "no intra": ("adversarial.intra=0,0",),
    "no cross": ("adversarial.cross=0,0",),
    "no trans": ("adversarial.trans=0,0",),
}
"""rows of Table 5 after the first one"""
_GRID = tuple(_level(*level) for level in LEVELS)
_LEVELS_OF_OTHER_MODELS = (SPARSE, DENSER, "100%", "10% x 1", "20% x 5", "50% x 5")

ROWS = (
    _row("10% x 1"),
    _row("10% x 1", name="no s", pseudo=_NO_PSEUDO),
    _row("10% x 1", "pseudo.sources=regions", name="regions"),
    _row("10% x 1", *_CLASSES_ALONE, name="classes alone"),
    _row("10% x 1", "pseudo.run=row:10% x 1", _CORPUS, name="again"),
    _row("10% x 1", "pseudo.run=row:again, 10% x 1", _CORPUS, name="a third time"),
    _row("10% x 1", *_PIECES, name="vse, MiniLM", pseudo=_NO_PSEUDO),
    _row("10% x 1", *_PIECES, name="vse + s, MiniLM"),
    _row("10% x 1", "pseudo.run=row:vse + s, MiniLM, 10% x 1", _CORPUS, name="found by MiniLM"),
    _row("10% x 1", "pseudo.sources=", "pseudo.run=row:no s, 10% x 1", _CORPUS, name="again without tags"),
    *(_row(level) for level in (*_GRID[1:], "100%")),
    _row(SPARSE, name="no s", pseudo=_NO_PSEUDO),
    *(_row(SPARSE, *changes, name=name) for name, changes in _ABLATIONS.items()),
    *(
        _row(level, *changes, name=model, pseudo=_NO_PSEUDO)
        for level in _LEVELS_OF_OTHER_MODELS
        for model, changes in MODELS.items()
    ),
    Row("tags", "tags", (f"backbone={_NAMED_NETWORK}",), deterministic=True),
    *(
        _row(level, *changes, name=model, pseudo=_NO_PSEUDO)
        for level in _GRID
        if level not in _LEVELS_OF_OTHER_MODELS
        for model, changes in MODELS.items()
    ),
    *(
        _row("10% x 1", *changes, *((_NO_ADVERSARIES,) if model == "scan" else ()), name=f"{model} + s")
        for model, changes in MODELS.items()
    ),
    _row("10% x 1", *_TWO_BRANCH, name="two-branch", pseudo=_NO_PSEUDO),
    _row("10% x 1", *_TWO_BRANCH, name="two-branch + s"),
    # The paper divides the rate by ten after two thirds of the epochs.
    Row(f"paper's settings, {SPARSE}", "a3vse-paper", (*_COMMON, *_sparse(SPARSE), "optim.step_epochs=7")),
    _row(SPARSE, "terms=ranking,adversarial", name="triplets"),
    _row("10% x 1", "pseudo.sources=learnt", name="learnt words"),
    _row("10% x 1", "pseudo.sentences=1", name="one sentence"),
    _row("10% x 1", "pseudo.neighbours=2", name="captions of similar images"),
    _row("10% x 1", "pseudo.beta=0.8", name="beta 0.8"),
    _row("10% x 1", _NO_ADVERSARIES, name="no adversaries"),
    _row("100%", "pseudo.images=all", name="s of all"),
)


def _than_others(level: str) -> tuple[Claim, ...]:
    return tuple(
        Claim(f"{level}: A3VSE beats {name} (Table 2).", level, f"{model}, {level}")
        for model, name in (("vse", "VSE++"), ("dual-path", "DPC"), ("scan", "SCAN"))
    )


_OF_TABLE_5 = {
    "no s": "Pseudo-sentences help",
    "no attention": "Attention helps",
    "no adversaries": "Adversaries help",
    "no intra": "Alignment within modalities helps",
    "no cross": "Alignment across modalities helps",
    "no trans": "Transitive alignment helps",
}

CLAIMS = (
    *(
        Claim(f"With captions of 10% of images, one each, pseudo pairs make R@10 1.3 times as high ({text}).",
              "10% x 1", "no s, 10% x 1", metric=f"{side}.r10", factor=1.3)
        for side, text in (("t2i", "images for texts"), ("i2t", "texts for images"))
    ),
    *(
        Claim("With captions of 10% of images, one each, pseudo pairs of the paper's kind make R@10 1.3 times as high: "
              f"a detector's {words} ({text}).",
              f"{name}, 10% x 1", "no s, 10% x 1", metric=f"{side}.r10", factor=1.3)
        for name, words in (("regions", "classes and colours"), ("classes alone", "classes"))
        for side, text in (("t2i", "images for texts"), ("i2t", "texts for images"))
    ),
    *(
        Claim(f"Ours: so they do with sentences that the first run finds in other text ({text}).",
              "again, 10% x 1", "no s, 10% x 1", metric=f"{side}.r10", factor=1.3)
        for side, text in (("t2i", "images for texts"), ("i2t", "texts for images"))
    ),
    *(
        Claim(f"Ours: so they do with sentences that vse with a sentence encoder finds in other text ({text}).",
              "found by MiniLM, 10% x 1", "no s, 10% x 1", metric=f"{side}.r10", factor=1.3)
        for side, text in (("t2i", "images for texts"), ("i2t", "texts for images"))
    ),
    Claim("Ours: the better the run that finds them, the more they help.", "found by MiniLM, 10% x 1",
          "again, 10% x 1"),
    Claim("Ours: pseudo pairs help a sentence encoder's vectors too.", "vse + s, MiniLM, 10% x 1",
          "vse, MiniLM, 10% x 1"),
    Claim("Ours: such sentences help beside what machines say.", "again, 10% x 1", "10% x 1"),
    Claim("Ours: they help alone, found by a run without pseudo pairs.", "again without tags, 10% x 1",
          "no s, 10% x 1"),
    Claim("Ours: found once more, by the second run, they help further.", "a third time, 10% x 1", "again, 10% x 1"),
    *(Claim(f"{text} (Table 5).", SPARSE, f"{name}, {SPARSE}") for name, text in _OF_TABLE_5.items()),
    Claim("What regions show beats labels of the whole image (Table 5).", f"regions, {SPARSE}", f"s_g, {SPARSE}"),
    *(claim for level in (SPARSE, DENSER, "100%") for claim in _than_others(level)),
    *(
        Claim(f"{level}: A3VSE beats SCAN (Table 1).", level, f"scan, {level}")
        for level in _GRID if level not in (SPARSE, DENSER)
    ),
    Claim("20% of the captions suffice: A3VSE with 50% x 2 beats VSE++ with all (Table 2).", DENSER, "vse, 100%"),
    Claim("20% of the captions suffice: A3VSE with 50% x 2 beats DPC with all (Table 2).", DENSER, "dual-path, 100%"),
    Claim("SCAN with all captions beats A3VSE with 50% x 2 (Table 2).", "scan, 100%", DENSER),
    Claim("More images beat more sentences: 50% x 1 and 10% x 5 (Sec. 4.4).", "50% x 1", SPARSE),
    Claim("More images beat more sentences: 20% x 1 and 10% x 2 (Table 1).", "20% x 1", "10% x 2"),
    Claim("More images beat more sentences: 50% x 2 and 20% x 5 (Table 1).", DENSER, "20% x 5"),
    Claim("A caption for 10% of images beats labels without any (Tables 1 and 2).", "10% x 1", "tags",
          metric="t2i.r1"),
    Claim("Labels without any caption beat VSE++ with 10% x 5 (Table 2).", "tags", f"vse, {SPARSE}", metric="t2i.r1"),
    *(
        Claim(f"Ours: pseudo pairs help {model} too.", f"{model} + s, 10% x 1", f"{model}, 10% x 1")
        for model in (*MODELS, "two-branch")
    ),
    Claim("Ours: adversaries help with one caption each.", "10% x 1", "no adversaries, 10% x 1"),
    Claim("Ours: labels and learnt words beside what regions show help.", "10% x 1", "regions, 10% x 1"),
    Claim("Ours: so do they beside learnt words.", "10% x 1", "learnt words, 10% x 1"),
    Claim("Ours: several sentences of a few words beat one of all.", "10% x 1", "one sentence, 10% x 1"),
    Claim("Ours: captions of similar images help beside them.", "captions of similar images, 10% x 1", "10% x 1"),
    Claim("Ours: with one caption each, pseudo pairs should weigh more than the paper's 0.2.",
          "10% x 1", "beta 0.8, 10% x 1"),
    Claim("Ours: our settings beat the paper's.", SPARSE, f"paper's settings, {SPARSE}"),
    Claim("Ours: InfoNCE beats triplets.", SPARSE, f"triplets, {SPARSE}"),
    Claim("Ours: pseudo-sentences of captioned images help.", "s of all, 100%", "100%"),
    Claim("The same on MS-COCO (Tables 3 and 4).", "", "", needs="MS-COCO pictures and captions"),
)  # fmt: skip

_CURVE = ("10% x 5", "20% x 5", "50% x 5", "100%")
"""levels of Fig. 1: five sentences per image"""

_ONE = "10% x 1"
TABLES: dict[str, Table | Grid] = {
    "Tables 1 and 2: levels of annotation": Grid(
        {"A3VSE": "{}", "SCAN": "scan, {}", "VSE++": "vse, {}", "DPC": "dual-path, {}"},
        (*_GRID, "100%"),
        "A level is the share of images with captions, and the number of captions of each. In the paper, A3VSE is best "
        "at all levels, most clearly with few captions, and more images are worth more than more sentences; our "
        "detector has 80 classes, where the paper has 2,000 objects and attributes.",
        sources=("Table 1", "Table 2"),
    ),
    f"Table 5: parts left out, {SPARSE}": Table(
        ((SPARSE, f"no s, {SPARSE}", *(f"{name}, {SPARSE}" for name in _ABLATIONS)),),
        "In the paper, pseudo-sentences and attention matter most, and the adversaries add a few points. The row "
        "\"regions\" has the pseudo-sentences of the paper; the first row adds labels and learnt words.",
        ((SPARSE, f"triplets, {SPARSE}", f"paper's settings, {SPARSE}"), ("100%", "s of all, 100%"),
         (_ONE, "tags")),
        sources=("Table 5", "Table 2"),
    ),
    f"Ours: one caption for a tenth of the images, {_ONE}": Table(
        (
            (f"no s, {_ONE}", _ONE, f"again without tags, {_ONE}", f"again, {_ONE}", f"found by MiniLM, {_ONE}"),
            (f"vse, MiniLM, {_ONE}", f"vse + s, MiniLM, {_ONE}"),
        ),
        "Rows \"again\" and \"found by MiniLM\" add sentences that an earlier run retrieves from captions of other "
        "pictures. The last two rows replace the whole text network by a pretrained one.",
        (
            (_ONE, *(f"{name}, {_ONE}" for name in (
                "regions", "classes alone", "learnt words", "one sentence", "captions of similar images", "beta 0.8",
                "no adversaries",
            ))),
            (f"again, {_ONE}", f"a third time, {_ONE}"),
            *((f"{model}, {_ONE}", f"{model} + s, {_ONE}") for model in ("vse", "scan", "dual-path", "two-branch")),
        ),
    ),
}  # fmt: skip

A3VSE = Study(
    "a3vse",
    ROWS,
    CLAIMS,
    TABLES,
    levels={
        "A3VSE": _CURVE,
        **{model: tuple(f"{model}, {level}" for level in _CURVE) for model in MODELS},
    },
    uncaptioned=("tags",),
    mapped=("20% x 5", SPARSE, f"no s, {SPARSE}"),
)
