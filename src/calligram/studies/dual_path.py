"""Claims of the dual-path paper, as rows that can be run.

The backbone is a ResNet-50, as in the tables of the paper. Rows "MiniLM" are ours and have an EfficientNet-Lite2. Word
vectors replace those of the paper, as in the two-branch study: ``calligram words
$CALLIGRAM_ASSETS/text/flickr30k-captions.txt.gz data/words.txt``. The rows have a text CNN of one block: the 30,000
captions of Flickr8k are too few to train the fifty layers of the paper, as rows of Table III show. Rows of stage I
leave the second stage out and train on stored features. Rows of stage II include a first stage. Most rows have classes
that start at their images and are compared by cosines, a linear head and a margin of 0.2, since these train in a few
epochs. Rows "as printed" have the classifier of the paper (inner products, random start), its head, margin 1, its
dropout and average pooling, and a longer stage I, which random classes need. Person search (Table VII) is a separate
study with MobileNetV2 on scenes of single people: ``calligram scenes data/people --kind people --images 12000``.
"""

from __future__ import annotations

from calligram.studies.claims import ASSETS, Claim, Row, Study, Table

_VIEWS = ("image.views=flip", "image.flip=true")
_IMAGES = (f"image.backbone=${ASSETS}/models/resnet50", *_VIEWS)
_WORDS = "text.vectors=data/words.txt"
_SMALL_TEXT_CNN = ("text.cnn.blocks=1", "text.cnn.width=128", "vse.head=linear", "dim=512", "ranking.margin=0.2")
_CLASSES = ("instance.init=images", "instance.scale=16")
_STAGES = ("precision=bf16", "stages.1.epochs=6", "stages.1.lr=0.002", "stages.2.epochs=3", "stages.2.lr=0.001")
_BOTH_STAGES = (*_IMAGES, _WORDS, *_SMALL_TEXT_CNN, *_CLASSES, *_STAGES)
_FIRST = (*_BOTH_STAGES, "stages.2.epochs=0", "precision=fp32")  # small enough for a CPU
_RANKING_ONLY = "stages.1.without=instance"
# Without a warm-up with all negatives, the hardest negatives of the first steps collapse all vectors.
_WARM_RANKING = (_RANKING_ONLY, "stages.1.warmup_epochs=2")
# Classifier, head, margin, dropout and pooling of the paper (Secs. III, IV and VI-B), with one block of the text CNN.
_AS_PRINTED = (
    *_BOTH_STAGES, "vse.head=paper", "ranking.margin=1", "instance.init=random", "instance.scale=0",
    "instance.dropout=0.75", "text.cnn.pooling=mean", "stages.1.epochs=24",
)  # fmt: skip
_FIRST_AS_PRINTED = (*_AS_PRINTED, "stages.2.epochs=0", "precision=fp32")
# The instance loss alone trains slowly; all losses together give the best result with a text CNN.
_ALL_LOSSES = ("terms=ranking,infonce,instance", "ranking.weight=0.3", "instance.weights=0.3,0.3")
_ALL = (
    *_IMAGES, _WORDS, *_SMALL_TEXT_CNN, *_CLASSES, *_ALL_LOSSES, "precision=bf16", "stages.1.epochs=4",
    "stages.1.lr=0.002", "stages.2.epochs=5", "stages.2.lr=0.001",
)  # fmt: skip
# EfficientNet-Lite2 was trained on 256 pixels. These rows have 224, so that rows "larger" differ: 256, or 288.
_MINILM = (
    f"image.backbone=${ASSETS}/models/efficientnet_lite2_256", *_VIEWS, "image.size=224", "image.train=true",
    "image.crop=0.5", "image.jitter=0.3", f"text.encoder=${ASSETS}/models/minilm", "text.train=true",
    "text.word_dropout=0.15", "dim=512", "texts=1", "epoch_of=pairs", "epochs=6", "batch=128", "ema_decay=0.998",
    "lr=0.001", "optim.lr_scale=image:0.3,text.encoder:0.1", "optim.warmup=0.05", "precision=bf16",
)  # fmt: skip
_WITH_INSTANCE = ("terms=infonce,instance", "instance.weight=0.5", "instance.scale=16")
_LARGE_VSE = (
    *_MINILM, "epochs=8", "batch=256", "ema_decay=0.995", "image.size=256", "image.crop=0.35", "text.word_dropout=0.2",
    "optim.weight_decay=0.05",
)  # fmt: skip
_LARGEST_VSE = (*_LARGE_VSE, "epochs=11", "image.size=288", "image.crop=0.3", "image.jitter=0.4", "ema_decay=0.997")


def _row(name: str, *changes: str) -> Row:
    return Row(name, "dual-path", changes)


ROWS = (
    _row("shallow text CNN, all losses, stage II", *_ALL),
    _row("stage I", *_FIRST),
    _row("stage II", *_BOTH_STAGES),
    _row("ranking only, stage II", *_BOTH_STAGES, _RANKING_ONLY, "stages.2.without=instance"),
    _row("instance only, stage II", *_BOTH_STAGES, "stages.2.without=ranking"),
    _row("ranking only, stage I", *_FIRST, *_WARM_RANKING),
    _row("text CNN of 50 layers, stage I", *_FIRST, "text.cnn.blocks=3,4,6,3", "text.cnn.width=64"),
    _row("text CNN of 152 layers, stage I", *_FIRST, "text.cnn.blocks=3,8,36,3", "text.cnn.width=64"),
    _row("530 categories, stage I", *_FIRST, "instance.clusters=530"),
    _row("160 categories, stage I", *_FIRST, "instance.clusters=160"),
    _row("random words, stage I", *_FIRST, "text.vectors="),
    _row("left alignment, stage I", *_FIRST, "text.cnn.align=left"),
    _row("random classes, stage I", *_FIRST, "instance.init=random", "instance.scale=0"),
    _row("average pooling, stage I", *_FIRST, "text.cnn.pooling=mean"),
    _row("all shifts, stage I", *_FIRST, "text.cnn.shifts=0"),
    _row("GRU, stage I", *_FIRST, "text.network=gru", "text.hidden=512", "text.bidirectional=true"),
    _row("as printed, stage I", *_FIRST_AS_PRINTED),
    _row("as printed, stage II", *_AS_PRINTED),
    _row("as printed, ranking only, stage I", *_FIRST_AS_PRINTED, *_WARM_RANKING),
    _row("as printed, ranking only, stage II", *_AS_PRINTED, *_WARM_RANKING, "stages.2.without=instance"),
    _row("as printed, instance only, stage II", *_AS_PRINTED, "stages.2.without=ranking"),
    Row("MiniLM, InfoNCE", "vse", _MINILM),
    Row("MiniLM, larger", "vse", _LARGE_VSE),
    Row("MiniLM, larger, half the rates", "vse", (*_LARGE_VSE, "lr=0.0005")),
    Row("MiniLM, larger, two captions at once", "vse", (*_LARGE_VSE, "texts=2", "epochs=12")),
    Row("MiniLM, largest", "vse", _LARGEST_VSE),
    Row("MiniLM, InfoNCE and instance", "vse", (*_MINILM, *_WITH_INSTANCE)),
)

CLAIMS = (
    Claim("Training end to end in stage II helps (Table I).", "stage II", "stage I"),
    Claim("Stage I: the instance loss beats ranking alone (Table II).", "stage I", "ranking only, stage I"),
    Claim("Stage II: both losses beat the instance loss alone (Table II).", "stage II", "instance only, stage II"),
    Claim("Stage II: both losses beat ranking alone (Table II).", "stage II", "ranking only, stage II"),
    Claim(
        "Stage II: the instance loss alone beats ranking alone (Table II).",
        "instance only, stage II", "ranking only, stage II",
    ),
    Claim("A text CNN of 152 layers does not beat one of 50 (Table III).",
          "text CNN of 50 layers, stage I", "text CNN of 152 layers, stage I", kind="equivalence", one_sided=True),
    Claim("Ours: from few captions one block learns more than 50 layers.", "stage I", "text CNN of 50 layers, stage I"),
    Claim("A class for each group beats 530 clusters (Table IV).", "stage I", "530 categories, stage I"),
    Claim("More clusters beat fewer (Table IV).", "530 categories, stage I", "160 categories, stage I"),
    Claim("Word vectors are a better start than random ones (Table V).", "stage I", "random words, stage I"),
    Claim("Position shift beats left alignment (Table VI).", "stage I", "left alignment, stage I"),
    Claim(
        "S: the full model separates pairs better than the instance loss alone (Fig. 5).",
        "stage II", "instance only, stage II", metric="overlap",
    ),
    Claim(
        "S: the instance loss alone separates them better than ranking alone (Fig. 5).",
        "instance only, stage II", "ranking only, stage II", metric="overlap",
    ),
    Claim(
        "As printed: training end to end in stage II helps (Table I).", "as printed, stage II", "as printed, stage I"
    ),
    Claim(
        "As printed: in stage I the instance loss beats ranking alone (Table II).",
        "as printed, stage I", "as printed, ranking only, stage I",
    ),
    Claim(
        "As printed: in stage II both losses beat the instance loss alone (Table II).",
        "as printed, stage II", "as printed, instance only, stage II",
    ),
    Claim(
        "As printed: in stage II both losses beat ranking alone (Table II).",
        "as printed, stage II", "as printed, ranking only, stage II",
    ),
    Claim("Ours: the maximum over places, the release's, beats the mean, the paper's.",
          "stage I", "average pooling, stage I"),
    Claim("Ours: classes that start where their images are, by cosines, beat random ones by inner products.",
          "stage I", "random classes, stage I"),
    Claim("Ours: averaging all shifts at test, as the release does, helps.", "all shifts, stage I", "stage I"),
    Claim("Ours: the text CNN beats a GRU (Sec. II leaves it open).", "stage I", "GRU, stage I"),
    Claim("Ours: InfoNCE beside both losses helps.", "shallow text CNN, all losses, stage II", "stage II"),
    Claim("Ours: larger pictures and batches, and stronger augmentation, help.", "MiniLM, larger", "MiniLM, InfoNCE"),
    Claim("Ours: half the learning rates help.", "MiniLM, larger, half the rates", "MiniLM, larger"),
    Claim("Ours: two captions of an image in a batch help.", "MiniLM, larger, two captions at once", "MiniLM, larger"),
    Claim("Ours: still larger pictures and longer training help.", "MiniLM, largest", "MiniLM, larger"),
    Claim("Ours: the instance loss helps InfoNCE too.", "MiniLM, InfoNCE and instance", "MiniLM, InfoNCE"),
    Claim("The same gains with VGG-19, ResNet-50 and ResNet-152 (Table I).", "", "",
          needs="ImageNet weights of VGG19 and ResNet-152"),
    Claim("The same on MS-COCO (Tables III, IV and VIII).", "", "", needs="MS-COCO pictures and captions"),
    Claim("Person search on CUHK-PEDES: stage II reaches R@1 44.4 (Table VII).", "", "",
          needs="the pictures of CUHK-PEDES, which are given on request only"),
)  # fmt: skip

TABLES = {
    "Table II: stages and losses": Table(
        (
            ("stage II", "ranking only, stage II", "instance only, stage II", "stage I"),
            ("stage I", "ranking only, stage I"),
        ),
        "In the paper, the instance loss makes the first stage possible, the second stage trains both networks and "
        "helps much, and both losses together are best. The image network is the ResNet-50 of the paper. Our text CNN "
        "has one block, because Flickr8k has too few captions for fifty layers.",
        (
            (
                "as printed, stage II", "as printed, ranking only, stage II", "as printed, instance only, stage II",
                "as printed, stage I",
            ),
            ("as printed, stage I", "as printed, ranking only, stage I"),
            ("stage II", "shallow text CNN, all losses, stage II", "MiniLM, InfoNCE"),
            ("MiniLM, InfoNCE", "MiniLM, InfoNCE and instance", "MiniLM, larger"),
            (
                "MiniLM, larger", "MiniLM, larger, half the rates", "MiniLM, larger, two captions at once",
                "MiniLM, largest",
            ),
        ),
        sources=("Table II",),
    ),
    "Tables III to VI: parts of stage I": Table(
        (
            (
                "stage I", "text CNN of 50 layers, stage I", "text CNN of 152 layers, stage I",
                "530 categories, stage I", "160 categories, stage I", "random words, stage I",
                "left alignment, stage I",
            ),
        ),
        "In the paper, a deeper text CNN does not help, and one class for each group of an image and its texts, word "
        "vectors and position shift do. 530 and 160 clusters are the same share of the images as 10,000 and 3,000 in "
        "the paper.",
        (
            (
                "stage I", "random classes, stage I", "average pooling, stage I", "all shifts, stage I", "GRU, stage I",
            ),
        ),
        sources=("Table II", "Table III", "Table IV", "Table V", "Table VI"),
    ),
}  # fmt: skip

DUAL_PATH = Study("dual-path", ROWS, CLAIMS, TABLES)

# Small enough for a CPU: images are 128 pixels high, and an epoch takes every image once.
_PERSONS = (
    f"image.backbone=${ASSETS}/models/mobilenet_v2_1.0_224", "image.size=128", "groups=identity", "epoch_of=images",
    "text.cnn.length=56", "text.cnn.blocks=1", "text.cnn.width=128", "vse.head=linear", "dim=512", "ranking.margin=0.2",
    *_CLASSES, *_ALL_LOSSES,
    "stages.1.epochs=6", "stages.1.lr=0.002", "stages.2.epochs=3", "stages.2.lr=0.001",
)  # fmt: skip

DUAL_PATH_PERSONS = Study(
    "dual-path-persons",
    (
        _row("stage II", *_PERSONS),
        _row("stage I", *_PERSONS, "stages.2.epochs=0"),
    ),
    (
        Claim("Training end to end helps much with persons (Table VII).", "stage II", "stage I", metric="t2i.r1"),
    ),
    {
        "Table VII: a text finds a person": Table(
            (("stage I", "stage II"),),
            "In the paper, training the image network triples R@1, because photographs of cameras in streets differ "
            "from ImageNet. Our persons are drawn scenes, because CUHK-PEDES is given on request only; the recalls "
            "cannot be compared, the gain of stage II can.",
            sources=("Table VII",),
            metric="t2i.r1",
        ),
    },
)  # fmt: skip
