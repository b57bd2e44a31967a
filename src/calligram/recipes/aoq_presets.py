"""What each matcher lays over the defaults of recipe ``aoq``: the sizes and rates of its own recipe."""

from __future__ import annotations

_PAIRS = ("batch=128", "texts=1", "epoch_of=pairs")

_FRAGMENTS = (
    *_PAIRS, "epochs=15", "warmup_epochs=1", "lr=0.0005", "dim=512", "average=0.998", "text.word_dim=300",
    "text.hidden=512", "text.bidirectional=true", "text.dropout=0.2", "text.blank=0.1",
)  # fmt: skip

PRESETS: dict[str, tuple[str, ...]] = {
    "dual-path": (
        *_PAIRS, "text.network=cnn", "text.word_dim=300", "text.dropout=0.2", "text.blank=0.1", "image.crop=0.5",
        "image.jitter=0.3", "head=paper", "dim=1024", "lr=0.001", "average=0.998",
    ),
    "pretrained": (*_PAIRS, "epochs=5", "warmup_epochs=0", "lr=0.00001", "image.crop=0.7", "optim.warmup=0.05"),
    "scan": _FRAGMENTS,
    "bfan": _FRAGMENTS,
    "vsrn": _FRAGMENTS,
    "a3vse": (*_FRAGMENTS, "text.bidirectional=false"),
    "mmca": (*_FRAGMENTS, "dim=256"),
}  # fmt: skip
