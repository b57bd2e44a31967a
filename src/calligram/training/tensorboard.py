"""Metrics for TensorBoard, where it is installed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class Curves:
    """Writes scalars to ``tensorboard/`` of a run; does nothing without the ``tensorboard`` extra."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter
        except ImportError:
            log.info("TensorBoard is not installed; metrics are in metrics.jsonl (pip install calligram[tensorboard])")
        self._open: Any = None

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Scalars at a step; on the first call after a resume, later steps of an earlier process are hidden."""
        if self._writer is None:
            return
        if self._open is None:
            self._open = self._writer(str(self._folder / "tensorboard"), purge_step=step)
        for name, value in values.items():
            self._open.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush."""
        if self._open is not None:
            self._open.close()
