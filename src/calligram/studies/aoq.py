"""Claims of the AOQ paper (adaptive offline quintuplet loss), as rows that can be run.

Regions are the cells of the grid of a frozen EfficientNet-Lite2. Word vectors are those of the two-branch study:
``calligram words $CALLIGRAM_ASSETS/text/flickr30k-captions.txt.gz data/words.txt``. As in the paper, a VSRN trained
with online negatives is the teacher of all three matchers (``offline.negatives=row:vsrn``). Cells have no order of
importance, so VSRN takes their mean, where the paper feeds detections to a GRU; one row has that GRU. SCAN attends from
regions to words, its better direction here. The variations of VSRN in the paper are made with BFAN, which trains
several times as fast. Single models are compared, where the tables of the paper have ensembles of two. ``make bench``
measures the time of a step (Table 6).

Lists of offline negatives are a share of the collection, 0.2% of the texts and of the images, which is 60 texts and 12
images. The 300 texts of the paper are 0.2% of the captions of Flickr30K, but 1% of those of Flickr8k. Rows "printed
schedule" have the optimizer and the learning rates of the paper, without a warm-up.
"""

from __future__ import annotations

from calligram.studies.claims import ASSETS, Claim, Row, Study, Table

_IMAGES = f"image.backbone=${ASSETS}/models/efficientnet_lite2_256"
_FROZEN = (_IMAGES, "text.vectors=data/words.txt", "precision=bf16", "image.region_dropout=0.2", "image.dropout=0.2")
_SAME_SIZES = (
    "batch=128", "texts=1", "epoch_of=pairs", "dim=512", "ema_decay=0.998", "text.word_dim=300", "text.hidden=512",
    "text.bidirectional=true", "text.dropout=0.2", "text.word_dropout=0.1",
)  # fmt: skip
"""sizes of all matchers, so that only the matcher differs"""
# Rows "after all negatives" show the reason: with offline negatives too early, all scores collapse to one value.
_COMMON = (*_FROZEN, *_SAME_SIZES, "epochs=10", "warmup_epochs=4", "warmup_loss=infonce", "lr=0.0008")
_MODEL_SETTINGS = {
    "scan": ("scan.direction=i2t", "scan.temperature=4", "scan.sharpness=5"),
    "bfan": (),
    "vsrn": ("vsrn.norm=features", "vsrn.reader=mean", "vsrn.layers=2", "text.pooling=last"),
    "vse": (),
    "dual-path": ("text.network=cnn", "text.cnn.blocks=1", "text.cnn.width=128"),
}
"""settings of one matcher; dual-path is vse with a text CNN"""
_MINILM = (
    f"text.encoder=${ASSETS}/models/minilm", "text.train=true", "text.word_dropout=0.15", "text.vectors=",
    "optim.lr_scale=text.encoder:0.1", "lr=0.001", "epochs=6",
)  # fmt: skip
_END_TO_END = (
    _IMAGES, "text.vectors=data/words.txt", "precision=bf16", "image.train=true", "image.crop=0.5", "image.flip=true",
    "image.jitter=0.3", "lr=0.001", "optim.lr_scale=image:0.3", "epochs=6",
)  # fmt: skip
# Two rounds of 10 epochs and 10 epochs at a tenth of the rate (Sec. 4.2), with the sizes of the other rows.
_PRINTED_SCHEDULE = (
    "epochs=20", "warmup_epochs=0", "lr=0.0002", "ema_decay=0", "optim.optimizer=adam", "optim.weight_decay=0",
    "optim.schedule=step", "optim.step_epochs=10", "optim.warmup=0",
)  # fmt: skip
_TEACHER = "offline.negatives=row:vsrn"
_QUINTUPLET, _ADAPTIVE = "offline.loss=quintuplet", "offline.loss=adaptive"
LOSSES = {"OffTri": "offline.loss=triplet", "OffQuin": _QUINTUPLET, "AdapOffQuin": _ADAPTIVE}
MODELS = {"vsrn": "VSRN", "bfan": "BFAN", "scan": "SCAN"}
_NAMES = {**MODELS, "vse": "vse"}


def _online(name: str, matcher: str, *changes: str) -> Row:
    """Return a row with the hardest negatives of a batch, in one round."""
    return _row(name, matcher, "ranking", "stages.2.epochs=0", *changes)


def _offline(name: str, matcher: str, *changes: str) -> Row:
    """Return a row with offline negatives, whose first round has online ones."""
    return _row(name, matcher, "ranking,offline", *changes)


def _row(name: str, matcher: str, terms: str, *changes: str) -> Row:
    """Return a row of the study; VSRN is also trained to generate captions."""
    kind = "vse" if matcher == "dual-path" else matcher
    terms += ",caption" if matcher == "vsrn" else ""
    return Row(name, "aoq", (f"matcher={kind}", f"terms={terms}", *_COMMON, *_MODEL_SETTINGS[matcher], *changes))


def _softmax(name: str, preset: str, *changes: str) -> Row:
    """Return a row with InfoNCE in place of the hardest negatives."""
    return Row(name, preset, (*_FROZEN, "epochs=10", *_MODEL_SETTINGS[preset], *changes))


def _losses(matcher: str) -> tuple[Row, ...]:
    """Return the baseline and the three losses of Tables 1 and 2."""
    others = (_offline(f"{matcher} + {name}", matcher, loss, _TEACHER) for name, loss in LOSSES.items())
    return _online(matcher, matcher), *others


def _ablations(matcher: str, negatives: str = _TEACHER) -> tuple[Row, ...]:
    """Return the rows of Table 3; the row with offline negatives only has no warm-up, which uses online negatives."""

    def row(name: str, *changes: str) -> Row:
        return _offline(f"{matcher}, {name}", matcher, *changes)

    return (
        row("only offline", _QUINTUPLET, "offline.online=false", "warmup_epochs=0", negatives),
        row("fine-tuned", _ADAPTIVE, "stages.2.on_start=mine", "stages.2.warmup_epochs=0"),
        row("online quintuplets", _QUINTUPLET, "offline.derive=online", negatives),
        row("weights without offline", _ADAPTIVE, "offline.weigh_by=positive", negatives),
    )


def _general(matcher: str) -> tuple[Row, ...]:
    """Return rows of matchers that are not in the paper, with lists that they mine themselves."""
    return (
        _online(matcher, matcher),
        _offline(f"{matcher} + AdapOffQuin", matcher, _ADAPTIVE, f"offline.negatives=row:{matcher}"),
    )


def _printed_schedule(matcher: str, negatives: str = _TEACHER) -> tuple[Row, ...]:
    """Return the baseline and the full method with the schedule of the paper."""
    return (
        _online(f"printed schedule, {matcher}", matcher, *_PRINTED_SCHEDULE),
        _offline(f"printed schedule, {matcher} + AdapOffQuin", matcher, *_PRINTED_SCHEDULE, _ADAPTIVE, negatives),
    )


def _after_all(matcher: str) -> tuple[Row, ...]:
    """Return the baseline and the full method after a short warm-up with all negatives of a batch, as in vse++."""
    first = ("warmup_epochs=2", "warmup_loss=ranking")
    return (
        _online(f"{matcher} after all negatives", matcher, *first),
        _offline(f"{matcher} + AdapOffQuin after all negatives", matcher, *first, _ADAPTIVE, _TEACHER),
    )


_SIZES = (200, 300, 500, 1000)
"""sizes of lists in the paper"""
_PENALTIES = ((1.5, 0.2), (1.5, 0.5), (1.0, 0.3), (2.0, 0.3))

ROWS = (
    *(row for matcher in MODELS for row in _losses(matcher)),
    _softmax("scan, InfoNCE", "scan"),
    _softmax("bfan, InfoNCE", "bfan"),
    Row("vse, InfoNCE", "vse", (
        *_SAME_SIZES, *(c for c in _FROZEN if "region_dropout" not in c), "epochs=10", "lr=0.0005",
    )),
    _softmax("scan end to end, InfoNCE", "scan", *_END_TO_END, "image.region_dropout=0", "image.dropout=0"),
    _softmax("scan with MiniLM, InfoNCE", "scan", *_MINILM),
    *_general("vse"),
    *_ablations("vsrn"),
    *_ablations("bfan"),
    *_ablations("vse", "offline.negatives=row:vse"),
    _offline("vse + OffQuin", "vse", _QUINTUPLET, "offline.negatives=row:vse"),
    *(
        _offline(f"bfan, h = {h}", "bfan", _ADAPTIVE, f"offline.texts={h}", f"offline.images={h // 5}", _TEACHER)
        for h in _SIZES
    ),
    _online("bfan, batches of 192", "bfan", "batch=192"),
    *(
        _offline(f"bfan, beta = {beta}, alpha = {alpha}", "bfan", _ADAPTIVE, f"offline.beta={beta}",
                 f"offline.alpha={alpha}", _TEACHER)
        for beta, alpha in _PENALTIES
    ),
    _offline("bfan, normal sampling", "bfan", _ADAPTIVE, "offline.spread=normal", _TEACHER),
    _offline("bfan, squared hinge", "bfan", _QUINTUPLET, "offline.squared=true", _TEACHER),
    _offline("bfan, lists of its own", "bfan", _ADAPTIVE),
    _online("vsrn, a GRU over cells", "vsrn", "vsrn.reader=gru"),
    *_general("dual-path"),
    *_after_all("bfan"),
    *_after_all("scan"),
    *_printed_schedule("vse", "offline.negatives=row:vse"),
    *(row for matcher in MODELS for row in _printed_schedule(matcher)),
    _softmax("bfan with MiniLM, InfoNCE", "bfan", *_MINILM),
)  # fmt: skip


def _of_tables_1_and_2(matcher: str) -> tuple[Claim, ...]:
    steps = (matcher, *(f"{matcher} + {name}" for name in LOSSES))
    texts = ("offline triplets help", "quintuplets beat triplets", "adaptive penalties beat constant ones")
    return (
        *(
            Claim(f"{MODELS[matcher]}: {text} (Table 1).", better, worse)
            for text, worse, better in zip(texts, steps, steps[1:], strict=False)
        ),
        Claim(f"{MODELS[matcher]}: the whole approach helps (Tables 1 and 2).", steps[-1], matcher),
    )


def _of_table_3(matcher: str) -> tuple[Claim, ...]:
    name, best = _NAMES[matcher], f"{matcher} + AdapOffQuin"
    return (
        Claim(f"{name}: offline negatives alone do not train (Table 3).", matcher, f"{matcher}, only offline",
              expects_collapse=True),
        Claim(f"{name}: from scratch beats fine-tuning (Table 3).", best, f"{matcher}, fine-tuned"),
        Claim(f"{name}: quintuplets are better offline than online (Table 3).",
              f"{matcher} + OffQuin", f"{matcher}, online quintuplets"),
        Claim(f"{name}: weights need the offline scores (Table 3).", best, f"{matcher}, weights without offline"),
    )  # fmt: skip


CLAIMS = (
    *(claim for matcher in MODELS for claim in _of_tables_1_and_2(matcher)),
    *_of_table_3("vsrn"),
    *_of_table_3("bfan"),
    *_of_table_3("vse"),
    *(
        Claim(f"BFAN: also with h = {h} it beats the base (Table 3).", f"bfan, h = {h}", "bfan")
        for h in _SIZES
    ),
    Claim("BFAN: larger batches do not replace it (Table 4 of the supplement).",
          "bfan + AdapOffQuin", "bfan, batches of 192"),
    *(
        Claim(f"BFAN: also with beta = {beta} and alpha = {alpha} it beats the base (Table 5 of the supplement).",
              f"bfan, beta = {beta}, alpha = {alpha}", "bfan")
        for beta, alpha in _PENALTIES
    ),
    Claim("BFAN: adaptive penalties beat squared hinges (Sec. 3.3).", "bfan + AdapOffQuin", "bfan, squared hinge"),
    Claim("BFAN: normal sampling does not help (supplement).", "bfan + AdapOffQuin", "bfan, normal sampling",
          kind="equivalence", one_sided=True),
    Claim("BFAN beats SCAN with it (Table 1).", "bfan + AdapOffQuin", "scan + AdapOffQuin"),
    *(
        claim
        for matcher in ("bfan", "scan")
        for claim in (
            Claim(f"Ours: {MODELS[matcher]}: it helps after a short warm-up by all negatives of a batch, too.",
                  f"{matcher} + AdapOffQuin after all negatives", f"{matcher} after all negatives"),
            Claim(f"Ours: {MODELS[matcher]}: for it, InfoNCE is the better warm-up.",
                  f"{matcher} + AdapOffQuin", f"{matcher} + AdapOffQuin after all negatives"),
        )
    ),
    Claim("Ours: it helps vse too.", "vse + AdapOffQuin", "vse"),
    *(
        Claim(f"{name}: the whole approach helps with the printed schedule (Sec. 4.2).",
              f"printed schedule, {matcher} + AdapOffQuin", f"printed schedule, {matcher}")
        for matcher, name in _NAMES.items()
    ),
    Claim("Ours: it helps dual-path too.", "dual-path + AdapOffQuin", "dual-path"),
    Claim("Ours: it helps a pretrained dual encoder too.", "", "", needs="weights of a CLIP or SigLIP"),
    Claim("Ours: attention to cells beats one vector of the same features.", "scan, InfoNCE", "vse, InfoNCE"),
    Claim("Ours: InfoNCE beats the hardest negatives of a batch.", "scan, InfoNCE", "scan"),
    Claim("Ours: InfoNCE beats the hardest negatives of a batch for vse, too.", "vse, InfoNCE", "vse"),
    Claim("Ours: fragment matchers gain from a backbone that is trained too.",
          "scan end to end, InfoNCE", "scan, InfoNCE"),
    Claim("Ours: they gain from a pretrained text encoder.", "scan with MiniLM, InfoNCE", "scan, InfoNCE"),
    Claim("Ours: BFAN gains from it, too.", "bfan with MiniLM, InfoNCE", "bfan, InfoNCE"),
    Claim("Ours: the mean of cells beats a GRU over them.", "vsrn", "vsrn, a GRU over cells"),
)  # fmt: skip

_FIGURE_4 = tuple((matcher, *(f"{matcher} + {name}" for name in LOSSES)) for matcher in MODELS)

_OF_TABLE_3 = ("only offline", "fine-tuned", "online quintuplets", "weights without offline")


def _variants(matcher: str) -> tuple[str, ...]:
    """Return the variants of Table 3, after the row that they are compared with."""
    return f"{matcher} + AdapOffQuin", *(f"{matcher}, {name}" for name in _OF_TABLE_3)


TABLES = {
    "Tables 1 and 2: the three losses": Table(
        _FIGURE_4,
        "In the paper, each step (offline triplets, quintuplets, adaptive penalties) adds to the rsum of all three "
        "matchers: +3.3 for SCAN, +6.5 for BFAN and +4.6 for VSRN on MS-COCO, and +8.2, +16.3 and +3.7 on Flickr30K "
        "(Table 2). Our lists have 60 texts, 0.2% of the captions; the 300 of the paper are 0.2% in Flickr30K. Our "
        "rows are single models, not ensembles of two.",
        (
            ("vse", "vse + OffQuin", "vse + AdapOffQuin"),
            ("dual-path", "dual-path + AdapOffQuin"),
            *(
                (f"{matcher} after all negatives", f"{matcher} + AdapOffQuin after all negatives")
                for matcher in ("bfan", "scan")
            ),
            ("scan", "scan, InfoNCE"), ("bfan", "bfan, InfoNCE"), ("vse", "vse, InfoNCE"),
            *((f"printed schedule, {matcher}", f"printed schedule, {matcher} + AdapOffQuin") for matcher in _NAMES),
            ("scan, InfoNCE", "scan with MiniLM, InfoNCE", "scan end to end, InfoNCE"),
            ("bfan, InfoNCE", "bfan with MiniLM, InfoNCE"),
            ("vsrn", "vsrn, a GRU over cells"),
        ),
        sources=("Table 1",),
    ),
    "Table 3: variants": Table(
        (_variants("vsrn"),),
        "In the paper, offline negatives alone do not train, and each other variant is a little worse than the whole "
        "approach.",
        (
            _variants("bfan"), _variants("vse"),
            (
                "bfan + AdapOffQuin", *(f"bfan, h = {h}" for h in _SIZES),
                *(f"bfan, beta = {beta}, alpha = {alpha}" for beta, alpha in _PENALTIES),
                "bfan, normal sampling", "bfan, squared hinge", "bfan, lists of its own", "bfan, batches of 192",
            ),
        ),
        sources=("Table 3", "Table 1", "Table 4 of the supplement", "Table 5 of the supplement"),
    ),
}  # fmt: skip

AOQ = Study("aoq", ROWS, CLAIMS, TABLES, compared=_FIGURE_4)
