"""Settings of the A3VSE paper, where it gives them (a3vse, Sec. 4.3)."""

from __future__ import annotations

from collections.abc import Mapping

PRESETS: Mapping[str, tuple[str, ...]] = {
    "ours": (),
    # The rate is given as 0.00005 before and after the 16th of 24 epochs: taken for ten times as much before.
    "paper": (
        "loss=ranking", "top_k=1", "margin=0.2", "pseudo_margin=0.3", "warmup_epochs=0", "beta=0.8", "epochs=24",
        "batch=128", "texts=1", "epoch_of=pairs", "lr=0.0005", "average=0", "dim=512", "text.hidden=512",
        "text.word_dim=300", "text.min_count=4", "text.max_words=82", "text.dropout=0", "text.blank=0",
        "optim.optimizer=adam", "optim.weight_decay=0.000001", "optim.schedule=step", "optim.step_at=0.667",
        "optim.warmup=0", "optim.clip=2", "pseudo.repeats=true", "pseudo.most=36",
        "pseudo.attributes=all", "pseudo.label_least=0.3", "pseudo.naming=own",
    ),
}  # fmt: skip
"""settings by name"""
