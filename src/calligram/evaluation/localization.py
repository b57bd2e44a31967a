"""Phrase localization: recall of the box of a phrase among the proposals of its image, with bounds and baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from calligram.data.boxes import iou
from calligram.data.collection import Collection
from calligram.data.grounding import ImageBoxes, grounded_phrases, phrase_texts
from calligram.data.matches import Matches
from calligram.device import device_of
from calligram.errors import UserError
from calligram.evaluation.proposals import NO_HIT, first_hits, recall_within
from calligram.evaluation.recall import encode_texts, relevant_ranks
from calligram.features.images.region_input import ProposalFeatures
from calligram.features.inputs import Inputs, TextRows
from calligram.models.matcher import Encoded, Matcher
from calligram.progress import Track, silent

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

MIN_IOU = 0.5
"""smallest IoU of a correct box with the truth"""
CENTRE_AREA = 0.8
"""area of the central box of the baseline, as a share of the image"""
BATCH_REGIONS = 4096
"""number of regions encoded at once, in whole images"""


@dataclass(frozen=True)
class Localization:
    """Percent of phrases whose box is among the first k proposals, with an upper bound and baselines."""

    r1: float
    r5: float
    r10: float
    oracle: float
    """phrases with a correct box among all proposals: the upper bound"""
    whole: float
    """R@1 of the whole image as the answer"""
    central: float
    """R@1 of the central box as the answer"""
    phrases: int
    images: int
    proposals: float
    """mean number of proposals per image"""
    kinds: Mapping[str, float] = field(default_factory=dict)
    """R@1 by kind of phrase, if phrases have kinds"""

    def as_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class LocalizedPhrases:
    """Where a matcher finds the phrases of a split."""

    ranks: Ints
    """(P,) rank of the first correct proposal of each phrase; ``NO_HIT`` where no proposal is correct"""
    boxes: Floats
    """(P, 4) the first proposal of each phrase; zeros in an image without proposals"""


@dataclass(frozen=True)
class LoadedPhrases:
    """The phrases of a split and the proposals of their images, prepared for encoding."""

    phrases: Ints
    """(P,) rows of the table ``phrases``"""
    targets: ImageBoxes
    """target box of each phrase"""
    texts: TextRows
    """distinct strings"""
    text_of: Ints
    """number of the string of each phrase"""
    kinds: tuple[str, ...]
    proposed: ProposalFeatures
    sizes: Ints
    """(P, 2) width and height of the image of each phrase"""


def load_phrases(
    inputs: Inputs, collection: Collection, split: str, *, images: int | None = None, track: Track = silent
) -> LoadedPhrases:
    """Prepare the phrases and proposals of a split.

    Args:
        images: number of images with phrases, the first ones; None for all.

    Raises:
        UserError: when the matcher was not trained on regions, or there are no phrases or proposals.
    """
    regions = inputs.images.region_input
    if regions is None:
        raise UserError("this matcher takes whole images; phrase localization needs a matcher trained on regions")
    for table in ("phrases", "groundings"):
        if not collection.has(table):
            raise UserError(f"collection {collection.folder} has no {table}, which phrase localization needs")
    grounded = grounded_phrases(collection, collection.images_in(split))
    rows = np.unique(grounded.chain_boxes.images)[:images]
    if len(rows) < len(np.unique(grounded.chain_boxes.images)):
        grounded = grounded_phrases(collection, rows)
    if not len(grounded):
        raise UserError(f"split {split} of {collection.folder} has no phrase with a box")
    strings, text_of = np.unique(
        np.array(phrase_texts(collection, grounded.phrases).strings, dtype=object), return_inverse=True
    )
    kinds = collection.table("phrases").column("kind").take(grounded.phrases).to_pylist()
    sizes = np.stack([collection.numbers("images", side) for side in ("width", "height")], axis=1)
    return LoadedPhrases(
        grounded.phrases,
        grounded.targets,
        inputs.texts.load(list(strings), collection.pictures.cache, track),
        text_of.astype(np.int64),
        tuple(str(kind or "") for kind in kinds),
        regions.proposal_features(collection, rows, track),
        sizes[grounded.targets.images],
    )


def evaluate_localization(
    matcher: Matcher, inputs: Inputs, loaded: LoadedPhrases, track: Track = silent
) -> Localization:
    """Measure how often a correct box is among the first proposals of a phrase (two-branch, Sec. 4.4)."""
    return summarise_localization(localize_phrases(matcher, inputs, loaded, track), loaded)


@torch.no_grad()
def localize_phrases(
    matcher: Matcher, inputs: Inputs, loaded: LoadedPhrases, track: Track = silent
) -> LocalizedPhrases:
    """Rank the proposals of its image for every phrase (two-branch, Sec. 4.4).

    A box is correct if its IoU with the smallest box around all regions of the phrase is at least 0.5. Phrases without
    a box are left out. Boxes vote for each other where the inputs say so (``RegionInput.voted``). Wrong boxes with an
    equal score are ranked before correct ones.
    """
    matcher.eval()
    texts = encode_texts(matcher, loaded.texts)
    targets, at = loaded.targets, loaded.proposed.boxes
    ranks, voters = np.full(len(targets), NO_HIT, dtype=np.int64), inputs.images.region_input
    boxes = np.zeros((len(targets), 4), dtype=np.float32)
    for image, regions in _encoded(matcher, inputs, loaded.proposed, track):
        mine, proposed = targets.rows_of_image(image), at.boxes[at.rows_of_image(image)]
        correct = iou(targets.boxes[mine], proposed) >= MIN_IOU
        strings, back = np.unique(loaded.text_of[mine], return_inverse=True)
        queries = texts.rows(torch.from_numpy(strings).to(texts.vectors.device))
        scores = matcher.score(regions, queries).T.float().cpu().numpy()
        if voters is not None:
            scores = voters.voted(scores, proposed)
        scores = scores[back]
        boxes[mine] = proposed[scores.argmax(axis=1)]
        phrase, box = np.nonzero(correct)
        ranks[mine[correct.any(axis=1)]] = relevant_ranks(scores, Matches(phrase, box, correct.shape)).best
    return LocalizedPhrases(ranks, boxes)


def _encoded(
    matcher: Matcher, inputs: Inputs, proposed: ProposalFeatures, track: Track
) -> Iterator[tuple[int, Encoded]]:
    """Yield the encoded regions of each image; several images are encoded together."""
    device = device_of(matcher)
    images, starts = np.unique(proposed.boxes.images, return_index=True)
    ends = np.append(starts[1:], len(proposed.boxes))
    groups = np.split(np.arange(len(images)), np.flatnonzero(np.diff(starts // BATCH_REGIONS)) + 1)
    for group in track(groups, "localizing", len(groups)):
        first, last = int(starts[group[0]]), int(ends[group[-1]])
        rows = proposed.rows.take(np.arange(first, last)).to(device)
        encoded = matcher.encode_images(inputs.images.finish(rows))
        for image in group.tolist():
            yield int(images[image]), encoded.rows(slice(int(starts[image]) - first, int(ends[image]) - first))


def summarise_localization(found: LocalizedPhrases, loaded: LoadedPhrases) -> Localization:
    """Return recalls, their upper bound and baselines."""
    ranks, targets, at = found.ranks, loaded.targets, loaded.proposed.boxes
    kinds = np.array(loaded.kinds, dtype=object)
    images = len(np.unique(targets.images))
    recalls = [recall_within(ranks, k) for k in (1, 5, 10)]
    whole, central = (_overlap_with_fixed(targets.boxes, loaded.sizes, share) for share in (1.0, CENTRE_AREA))
    return Localization(
        recalls[0],
        recalls[1],
        recalls[2],
        oracle=recall_within(first_hits(targets, at, MIN_IOU), NO_HIT - 1),
        whole=100 * float((whole >= MIN_IOU).mean()),
        central=100 * float((central >= MIN_IOU).mean()),
        phrases=len(targets),
        images=images,
        proposals=len(at) / images,
        kinds={kind: recall_within(ranks[kinds == kind], 1) for kind in sorted(set(loaded.kinds)) if kind},
    )


def _overlap_with_fixed(boxes: Floats, sizes: Ints, share: float) -> Floats:
    """Return the IoU (N,) of each box with the central box of its image that has this share of the area."""
    margin = (1 - share**0.5) / 2 * sizes
    fixed = np.concatenate([margin, sizes - margin], axis=1).astype(np.float32)
    pairs = zip(boxes, fixed, strict=True)
    return np.array([iou(box[None], other[None])[0, 0] for box, other in pairs], dtype=np.float32)
