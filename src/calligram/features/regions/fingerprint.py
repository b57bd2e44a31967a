"""What tells one network from another: its weights, not the name of its folder."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def fingerprint(model: nn.Module) -> str:
    """Digest of all weights and their names."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
