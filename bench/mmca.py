"""MMCA's pair module over all pairs: ours, one batched PyTorch layer over all stacked pairs, and a loop over pairs.

The layer is ``nn.TransformerEncoderLayer`` with the same weights, over all pairs' stacked and padded parts at once, in
tiles that fit into memory, followed by the same pools. It runs in autocast as ours does and, where nothing is learnt,
as a whole in bfloat16 too, which lets it take PyTorch's own fused path; ours is compared with the quicker. The limit is
the time of the matrix products alone that no pair can do without: output map, inner layers and windows of words.

    python bench/run.py mmca
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import torch
from fragments import timed
from torch import Tensor, nn

from calligram.losses.ranking import bidirectional
from calligram.models import fragment_tiles
from calligram.models.fusing import fusing
from calligram.models.matcher import Encoded, unit
from calligram.models.mmca import MMCA, MMCASettings
from calligram.models.transformer_unit import TransformerUnit

Row = dict[str, object]
Rows = Callable[[str, float, str], Row]
FEATURES, STATES = 2048, 384


class Sizes(NamedTuple):
    """What is measured."""

    images: int = 1000
    texts: int = 5000
    regions: int = 36
    words: int = 20
    dim: int = 256
    heads: int = 16
    batch: int = 64
    part: int = 500
    """texts that the layer is timed on, and the products alone; the time for all is in proportion"""
    loop: int = 64
    """pairs that the loop is timed on"""
    stacked: int = 4096
    """pairs in a tile of the layer"""
    times: int = 3


SMALL = Sizes(images=40, texts=80, batch=8, part=80, loop=8, stacked=128, times=3)
"""for a CPU"""


def mmca(row: Rows, sizes: Sizes | None = None) -> list[Row]:
    """A training step and scoring: on an accelerator in bfloat16, in single precision, and with TensorFloat32."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = sizes or (Sizes() if device == "cuda" else SMALL)
    found: list[Row] = []
    for precision in ("bf16", "fp32", "tf32") if device == "cuda" else ("fp32",):
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.manual_seed(0)
        own = MMCASettings(
            vocabulary=0, dim=sizes.dim, feature_dim=FEATURES, text="states", state_dim=STATES, heads=sizes.heads,
            filters=sizes.dim,
        )  # fmt: skip
        matcher = MMCA(own).to(device)
        found += training(row, matcher, sizes, device, precision)
        for varied in (False, True):
            found += scoring(row, matcher, sizes, device, precision, varied=varied)
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


def lowered(device: str, precision: str) -> contextlib.AbstractContextManager[object]:
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bf16")


def items(matcher: MMCA, sizes: Sizes, device: str, precision: str, *, varied: bool) -> tuple[Encoded, Encoded]:
    """Encoded images, and texts of as many words each, or of as many as Flickr's captions have pieces."""
    with torch.no_grad(), lowered(device, precision):
        images = matcher.encode_images(torch.randn(sizes.images, sizes.regions, FEATURES, device=device))
        mask = masks(sizes.texts, sizes.words, device, varied=varied)
        return images, matcher.encode_texts(torch.randn(*mask.shape, STATES, device=device), mask)


def masks(count: int, words: int, device: str, *, varied: bool) -> Tensor:
    lengths = torch.full((count,), words)
    if varied:
        lengths = (14 + 4 * torch.randn(count)).round().clamp(5, 40).long()
    return (torch.arange(int(lengths.max())) < lengths[:, None]).to(device)


class Layer(nn.Module):
    """The pair module as one PyTorch layer over stacked pairs, and the same pools."""

    def __init__(self, matcher: MMCA) -> None:
        super().__init__()
        own, self.pools = matcher.pairs.unit, deepcopy(matcher.pairs.ngrams)
        dim = own.out.weight.shape[0]
        self.layer = nn.TransformerEncoderLayer(
            dim, own.heads, dim, dropout=0.0, batch_first=True, norm_first=False, device=own.out.weight.device
        )
        self.layer.load_state_dict(same_weights(own))

    def forward(self, images: Tensor, real: Tensor, texts: Tensor, spoken: Tensor) -> Tensor:
        """Cosines (N,) of aligned pairs."""
        parts, mask = torch.cat([images, texts], 1), torch.cat([real, spoken], 1)
        both, count = self.layer(parts, src_key_padding_mask=~mask), images.shape[1]
        weights = real.to(both.dtype) / real.sum(-1, keepdim=True)
        image = (weights.unsqueeze(1) @ both[:, :count]).squeeze(1)
        return (unit(image) * unit(self.pools(both[:, count:], spoken))).sum(-1)

    def grid(self, images: Encoded, texts: Encoded, tile: int) -> Tensor:
        """All pairs (I, T), so many at a time."""
        pairs = torch.arange(len(images.vectors) * len(texts.vectors), device=images.vectors.device)
        found = []
        for some in torch.split(pairs, tile):
            one, two = images.rows(some // len(texts.vectors)), texts.rows(some % len(texts.vectors))
            assert one.parts is not None
            assert one.mask is not None
            assert two.parts is not None
            assert two.mask is not None
            found.append(self(one.parts, one.mask, two.parts, two.mask))
        return torch.cat(found).view(len(images.vectors), len(texts.vectors))


def same_weights(own: TransformerUnit) -> dict[str, Tensor]:
    """Of our unit, by the names of PyTorch's layer; projections have no bias."""
    dim = own.out.weight.shape[0]
    return {
        "self_attn.in_proj_weight": torch.cat([own.query.weight, own.key.weight, own.value.weight]),
        "self_attn.in_proj_bias": own.out.weight.new_zeros(3 * dim),
        "self_attn.out_proj.weight": own.out.weight,
        "self_attn.out_proj.bias": own.out.weight.new_zeros(dim),
        **{f"linear1.{name}": value for name, value in own.inner.named_parameters()},
        **{f"linear2.{name}": value for name, value in own.outer.named_parameters()},
        **{f"norm1.{name}": value for name, value in own.attended_norm.named_parameters()},
        **{f"norm2.{name}": value for name, value in own.norm.named_parameters()},
    }


@torch.no_grad()
def scoring(row: Rows, matcher: MMCA, sizes: Sizes, device: str, precision: str, *, varied: bool) -> list[Row]:
    """All pairs of a test set; texts of as many words each, or of 14 on average."""
    matcher.eval()
    images, texts = items(matcher, sizes, device, precision, varied=varied)
    part, share, layer = texts.rows(slice(0, sizes.part)), sizes.texts / sizes.part, Layer(matcher).eval()
    words = "14 words on average" if varied else f"{sizes.words} words each"
    name = (
        f"mmca, {sizes.images} x {sizes.texts}, {sizes.regions} regions, {words}, {sizes.dim} dimensions, {precision}"
    )
    with lowered(device, precision):
        ours = timed_best(device, lambda: matcher.score(images, texts), sizes.times)
        theirs = share * timed_best(device, lambda: layer.grid(images, part, sizes.stacked), 2)
        expected = unit(images.vectors) @ unit(part.vectors).T + 0.2 * layer.grid(images, part, sizes.stacked)
        apart = {"": float((matcher.score(images, part) - expected).abs().max())}
    found = [row(f"{name}: scoring", ours, "s")]
    ways = {"": ours}
    if device == "cuda":
        with fusing(), lowered(device, precision):
            ways[", compiled"] = timed_best(device, lambda: matcher.score(images, texts), sizes.times)
            apart[", compiled"] = float((matcher.score(images, part) - expected).abs().max())
        found.append(row(f"{name}: scoring, compiled", ways[", compiled"], "s"))
    if precision == "bf16":
        low, (one, two) = Layer(matcher).eval().bfloat16(), (Encoded(*map(lowest, side)) for side in (images, part))
        whole = share * timed_best(device, lambda: low.grid(one, two, sizes.stacked), 2)
        found.append(row(f"{name}: the layer in autocast, from {sizes.part} texts", theirs, "s"))
        found.append(row(f"{name}: the layer all in bfloat16, from {sizes.part} texts", whole, "s"))
        theirs = min(theirs, whole)
    with lowered(device, precision):
        loop = timed_best(device, lambda: by_pair(layer, images, part, sizes.loop), 1)
    loop *= sizes.images * sizes.texts / sizes.loop
    limit, best = share * products(part, sizes, device, precision), min(ways.values())
    found += [
        row(f"{name}: the layer over all pairs, from {sizes.part} texts", theirs, "s"),
        *(
            row(f"{name}: the layer's time against ours{way}", theirs / seconds, "ratio")
            for way, seconds in ways.items()
        ),
        *(row(f"{name}: largest difference from the layer{way}", value, "score") for way, value in apart.items()),
        row(f"{name}: the loop over pairs, from {sizes.loop} pairs", loop, "s"),
        row(f"{name}: the loop's time against ours", loop / best, "ratio"),
        row(f"{name}: the matrix products alone", limit, "s"),
        row(f"{name}: the matrix products alone against ours", limit / best, "ratio"),
    ]
    if precision == "bf16" and not varied:
        found += tiles(row, name, lambda: matcher.score(images, part), precision, device)
    return found


def lowest(tensor: Tensor | None) -> Tensor | None:
    return tensor if tensor is None or tensor.dtype == torch.bool else tensor.bfloat16()


def tiles(row: Rows, name: str, score: Callable[[], Tensor], precision: str, device: str) -> list[Row]:
    """Ours with smaller and larger tiles."""
    before, found = fragment_tiles.TILE[device], []
    for factor in (0.125, 0.25, 0.5, 1, 2, 4):
        fragment_tiles.TILE[device] = int(before * factor)
        for way, on in (("", False), (", compiled", True)):
            with fusing(on), lowered(device, precision):
                found.append(row(f"{name}: a tenth, tiles {factor} as large{way}", timed_best(device, score, 3), "s"))
    fragment_tiles.TILE[device] = before
    return found


def by_pair(layer: Layer, images: Encoded, texts: Encoded, count: int) -> list[Tensor]:
    """So many pairs, one by one, each without padding."""
    assert texts.mask is not None
    found = []
    for number, words in enumerate(texts.mask[:count].sum(1).tolist()):
        one = images.rows(slice(number % len(images.vectors), number % len(images.vectors) + 1))
        two = fragment_tiles.first_places(texts.rows(slice(number, number + 1)), words)
        found.append(layer.grid(one, two, 1))
    return found


def shapes(pairs: int, regions: int, words: int, dim: int) -> list[tuple[int, int, int]]:
    """Rows, inputs and outputs of the products of so many pairs: three maps of all parts, windows, the last map."""
    maps = [(pairs * (regions + words), dim, dim)] * 3
    return maps + [(pairs * words, size * dim, dim) for size in (1, 2, 3)] + [(pairs, 3 * dim, dim)]


@torch.no_grad()
def products(texts: Encoded, sizes: Sizes, device: str, precision: str) -> float:
    """Seconds of the products of all images with these texts' real words, in tiles of many pairs."""
    assert texts.mask is not None
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    pairs, words = sizes.images * len(texts.vectors), float(texts.mask.sum()) / len(texts.vectors)
    tile = min(pairs, 16384 if device == "cuda" else 256)
    seconds = 0.0
    for rows, inputs, outputs in shapes(tile, sizes.regions, round(words), sizes.dim):
        one, two = torch.randn(rows, inputs, device=device).to(dtype), torch.randn(inputs, outputs, device=device)
        two, out = two.to(dtype), torch.empty(rows, outputs, device=device, dtype=dtype)
        seconds += timed_best(device, lambda a=one, b=two, c=out: torch.mm(a, b, out=c), 5)  # type: ignore[misc]
    return seconds * pairs / tile


def training(row: Rows, matcher: MMCA, sizes: Sizes, device: str, precision: str) -> list[Row]:
    """Heads of the encoders, pair module, hinge with the hardest negatives, backward, Adam."""
    found: list[Row] = []
    name = f"mmca, training step of {sizes.batch} x {sizes.regions} regions x {sizes.words} words x {sizes.dim}"
    name += f", {precision}"
    torch.manual_seed(0)
    features = torch.randn(sizes.batch, sizes.regions, FEATURES, device=device)
    mask = masks(sizes.batch, sizes.words, device, varied=False)
    states = torch.randn(*mask.shape, STATES, device=device)
    matcher.train()
    ways: dict[str, tuple[MMCA, Layer | None, bool]] = {"ours": (deepcopy(matcher), None, False)}
    if device == "cuda":
        ways["ours, compiled"] = (deepcopy(matcher), None, True)
    ways["the layer over all pairs"] = (deepcopy(matcher), Layer(matcher).train(), False)
    seconds, losses = {}, {}
    for way, (model, layer, compiled) in ways.items():
        step = stepper(model, layer, (features, states, mask), precision)
        with fusing(compiled):
            losses[way] = step()
            for _ in range(3):
                step()
            seconds[way] = timed_best(device, step, 4 * sizes.times)
        found.append(row(f"{name}: {way}", seconds[way] * 1000, "ms"))
    theirs = seconds["the layer over all pairs"]
    for way in list(ways)[:-1]:
        found.append(row(f"{name}: the layer's time against {way}", theirs / seconds[way], "ratio"))
        apart = abs(losses[way] - losses["the layer over all pairs"])
        found.append(row(f"{name}: difference of the first loss, {way}", apart, "loss"))
    pairs, best = sizes.batch**2, min(seconds[way] for way in list(ways)[:-1])
    limit = both_ways(shapes(pairs, sizes.regions, sizes.words, sizes.dim), device, precision)
    found.append(row(f"{name}: the matrix products alone, both ways", limit * 1000, "ms"))
    found.append(row(f"{name}: the matrix products alone against ours", limit / best, "ratio"))
    return found


@torch.no_grad()
def both_ways(wanted: list[tuple[int, int, int]], device: str, precision: str) -> float:
    """Seconds of products forward, and of their gradients for inputs and weights."""
    dtype, seconds = torch.bfloat16 if precision == "bf16" else torch.float32, 0.0
    for rows, inputs, outputs in wanted:
        x, w, y = (
            torch.randn(*s, device=device).to(dtype) for s in ((rows, inputs), (inputs, outputs), (rows, outputs))
        )
        for one, two in ((x, w), (y, w.T), (x.T, y)):
            seconds += timed_best(device, lambda a=one, b=two: a @ b, 5)  # type: ignore[misc]
    return seconds


def stepper(
    matcher: MMCA, layer: Layer | None, given: tuple[Tensor, Tensor, Tensor], precision: str
) -> Callable[[], float]:
    """A step; its loss is looked at by nobody while it is timed."""
    features, states, mask = given
    device, count = features.device.type, len(features)
    parameters = [*matcher.parameters(), *(layer.parameters() if layer is not None else ())]
    optimizer = torch.optim.Adam(parameters, 2e-4, fused=device == "cuda")
    target = 2 * torch.eye(count, dtype=torch.int64, device=device) - 1

    def step() -> float:
        with lowered(device, precision):
            images, texts = matcher.encode_images(features), matcher.encode_texts(states, mask)
            if layer is None:
                scores = matcher.score(images, texts)
            else:
                scores = unit(images.vectors) @ unit(texts.vectors).T + 0.2 * layer.grid(images, texts, count**2)
        loss = bidirectional(scores, target, margin=0.2, top_k=1) / count
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_([p for p in parameters if p.grad is not None], 2.0)
        optimizer.step()
        return float(loss.detach())

    return step


def timed_best(device: str, work: Callable[[], object], times: int) -> float:
    """Median seconds after one turn that is not counted."""
    work()
    return timed(device, work, times)
