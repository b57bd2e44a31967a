"""Batches of images on a CPU: divided into the groups that a backbone encodes by default, against whole batches."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from rows import Row, row

from calligram.device import use_half_networks
from calligram.features.images import backbones
from calligram.features.images.backbones import Backbone, pixel_input
from calligram.memory import keep_freed_memory
from calligram.studies.claims import ASSETS

NETWORKS = {
    "MobileNetV2": "mobilenet_v2_1.0_224",
    "EfficientNet-Lite2": "efficientnet_lite2_256",
    "DINOv2-S": "dinov2_small_saliency",
}
"""folders of networks among the assets"""
BATCH, TURNS = 64, 3


def image_groups() -> list[Row]:
    """Each core encodes a batch of its own, as in indexing, in the precision of indexing."""
    keep_freed_memory()
    rows = []
    for name, folder in NETWORKS.items():
        path = str(Path(os.environ[ASSETS]) / "models" / folder)
        backbone, size = Backbone.load(path).eval(), pixel_input(path).size
        pixels = torch.randn(BATCH, 3, size, size)
        speeds: dict[str, list[float]] = {"whole": [], "groups": []}
        for _ in range(TURNS):
            with patch.object(backbones, "inference_groups", lambda network, images: (images,)):
                speeds["whole"].append(images_a_second(backbone, pixels))
            speeds["groups"].append(images_a_second(backbone, pixels))
        groups, whole = median(speeds["groups"]), median(speeds["whole"])
        rows += [
            row(f"{name}, batches of {BATCH} on each core: images in groups", groups, "images/s"),
            row(f"{name}, batches of {BATCH} on each core: groups against whole batches", groups / whole, "ratio"),
        ]
    return rows


def images_a_second(backbone: Backbone, pixels: torch.Tensor) -> float:
    cores, before = os.cpu_count() or 1, torch.get_num_threads()

    @torch.no_grad()
    def encode(_: int) -> None:
        with use_half_networks():
            backbone(pixels)

    with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        began = time.perf_counter()
        list(pool.map(encode, range(2 * cores)))
        seconds = time.perf_counter() - began
    torch.set_num_threads(before)
    return 2 * cores * len(pixels) / seconds
