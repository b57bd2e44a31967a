"""Settings of the dual-path paper and of its release, where they say or show them."""

from __future__ import annotations

from collections.abc import Mapping

_BOTH = (
    "batch=32",
    "dim=2048",
    "margin=1",
    "average=0",
    "classifier.dropout=0.75",
    # Random crops of 224 from pictures whose shorter side is 256 (Sec. VI-B), mirrored or not.
    "image.crop=0.766",
    "image.flip=true",
    "image.jitter=0",
    "image.views=flip",
    "text.min_count=1",
    "text.dropout=0",
    "text.blank=0",
    "first.epochs=240",
    "second.epochs=60",
    *(
        f"{stage}.optim.{change}"
        for stage in ("first", "second")
        for change in ("optimizer=sgd", "warmup=0", "clip=none")
    ),
)

PRESETS: Mapping[str, tuple[str, ...]] = {
    "ours": (),
    # Secs. V and VI-B. The rate of the second stage and the weight decay are not given.
    "paper": (
        *_BOTH,
        "head=paper",
        "text.cnn.pooling=mean",
        "first.lr=0.001",
        "second.lr=0.001",
        "second.optim.parts=",
        "first.optim.schedule=constant",
        "second.optim.schedule=constant",
        "first.optim.weight_decay=0",
        "second.optim.weight_decay=0",
    ),
    # The scripts for Flickr30K; their second stage ships without ranking, so its weights are those for COCO.
    "release": (
        *_BOTH,
        "head=release",
        "text.cnn.pooling=max",
        "text.cnn.shifts=0",
        "first.lr=0.1",
        "first.optim.schedule=constant",
        "first.optim.parts=text.words:0.001",
        "second.lr=0.1",
        "second.weights=2,1,0.1",
        "second.optim.schedule=step",
        "second.optim.step_at=0.667",
        "second.optim.parts=text.words:0.001,image:0.001",
        "first.optim.weight_decay=0.0001",
        "second.optim.weight_decay=0.0001",
    ),
}  # fmt: skip
