"""The pieces of MMCA's pair module over all pairs on a GPU, each alone; and its fused kernels with other tiles.

python bench/mmca_kernels.py    # 1000 images, 500 texts of 20 words; times are those of 5000 texts
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import product

import torch
from mmca import FEATURES, STATES, Sizes, items, lowered
from mmca_limits import products, timed_best
from torch import Tensor

from calligram.models.layers.fused_unit import NGRAM_TILE, NORM_TILE, Tile, best_ngrams, unit_after_attention
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.mmca import MMCA, MMCASettings, PairModule, Prepared

NORM_TILES = [Tile(*each) for each in product((4, 8, 16, 32), (4, 8), (1,))]
NGRAM_TILES = [Tile(*each) for each in product((64, 128), (4, 8, 16), (1, 2))]


def pieces(module: PairModule, images: Prepared, texts: Prepared) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield names and functions: attention of each side, and the fused kernels with their own tiles and others."""
    unit = module.unit
    shares = images.mask / images.mask.sum(-1, keepdim=True)
    to_texts, to_images = unit.attend(images, texts), unit.attend(texts, images)
    yield "attention of regions to words", lambda: unit.attend(images, texts)
    yield "attention of words to regions", lambda: unit.attend(texts, images)

    def of_images(tile: Tile) -> Tensor:
        return unit_after_attention(unit, to_texts, images.parts, shares, pool=True, tile=tile)

    def of_texts(tile: Tile) -> Tensor:
        return unit_after_attention(unit, to_images, texts.parts, texts.mask, pool=False, tile=tile)

    words = of_texts(NORM_TILE)
    best = best_ngrams(module.ngrams, words, texts.mask)
    yield "last map of texts", lambda: module.ngrams.project_best(best)
    for tile in (NORM_TILE, *NORM_TILES):
        yield f"unit of images, {tile}", lambda tile=tile: of_images(tile)  # type: ignore[misc]
        yield f"unit of texts, {tile}", lambda tile=tile: of_texts(tile)  # type: ignore[misc]
    for tile in (NGRAM_TILE, *NGRAM_TILES):
        yield f"n-grams, {tile}", lambda tile=tile: best_ngrams(module.ngrams, words, texts.mask, tile)  # type: ignore[misc]


@torch.no_grad()
def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("the kernels need a GPU")
    sizes = Sizes(texts=500)
    own = MMCASettings(
        ImageArchitecture(feature_dim=FEATURES), TextArchitecture("states", state_dim=STATES), sizes.dim,
        heads=sizes.heads, filters=sizes.dim,
    )  # fmt: skip
    matcher = MMCA(own).to("cuda").eval()
    images, texts = items(matcher, sizes, "cuda", "bf16", varied=False)
    share = Sizes().texts / sizes.texts
    limit = share * products(texts, sizes.images, sizes.regions, sizes.dim, "bf16")
    print(f"{limit:8.3f} s  all matrix products alone", flush=True)
    with lowered("cuda", "bf16"):
        whole = share * timed_best("cuda", lambda: matcher.score(images, texts), 3)
        print(f"{whole:8.3f} s  all of it", flush=True)
        prepared = [matcher.pairs.prepare_items(side) for side in (images.rows(slice(0, 100)), texts)]
        for name, work in pieces(matcher.pairs, *prepared):
            try:
                print(f"{10 * share * timed_best('cuda', work, 5):8.3f} s  {name}", flush=True)
            except Exception as error:  # a tile that does not fit into shared memory or registers
                print(f"       -    {name}: {str(error).splitlines()[0][:80]}", flush=True)


if __name__ == "__main__":
    main()
