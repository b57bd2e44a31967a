"""The instance loss as an objective, and the class labels of images and texts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calligram.data.matches import Matches
from calligram.losses.instance import CLASSES_PER_CHUNK, InstanceLossAndError, instance_loss_and_error
from calligram.models.matcher import Encoded, Matcher
from calligram.training.batches.batch import Batch
from calligram.training.objectives.objective import Objective
from calligram.vectors import unit_length

Ints = NDArray[np.int64]


class InstanceObjective(Objective):
    """Classify images and texts into their groups with shared weights (dual-path, Eqs. 5-8).

    The classifier is used in training only, so it belongs to this objective and not to the matcher. Departs from the
    paper if ``scale`` is given: cosines times the scale instead of inner products.
    """

    def __init__(
        self,
        dim: int,
        classes: int,
        *,
        weights: tuple[float, float] = (1.0, 1.0),
        dropout: float = 0.0,
        scale: float = 0.0,
        chunk: int | None = CLASSES_PER_CHUNK,
    ) -> None:
        """Args:
        weights: weights of the image term and of the text term, lambda 2 and 3 of Eq. 9.
        dropout: share of a vector's entries set to zero before the classifier.
        scale: factor on the cosines; 0 for inner products.
        chunk: number of classes whose logits are in memory at a time.
        """
        super().__init__()
        # W_share; initialised as the other layers of the paper (its reference 52).
        self.classes = nn.Parameter(nn.init.xavier_normal_(torch.empty(classes, dim)))
        self.dropout = nn.Dropout(dropout)
        self.weights, self.scale, self.chunk = weights, scale, chunk

    @property
    def graph_safe(self) -> bool:
        """Always: classes without a label are masked, not left out."""
        return True

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """L_visual and L_textual, for each weight that is not zero."""
        del matcher
        sides = (("image", images, batch.image_groups), ("text", texts, batch.text_groups))
        found = {
            name: (weight, self._classified(encoded.vectors, groups))
            for weight, (name, encoded, groups) in zip(self.weights, sides, strict=True)
            if weight
        }
        self.measures = {f"instance_{name}_error": seen.error for name, (_, seen) in found.items()}
        return {f"instance_{name}": weight * seen.loss for name, (weight, seen) in found.items()}

    def _classified(self, vectors: Tensor, groups: Tensor) -> InstanceLossAndError:
        if not self.scale:
            return instance_loss_and_error(self.dropout(vectors), self.classes, groups, chunk=self.chunk)
        return instance_loss_and_error(
            self.scale * self.dropout(unit_length(vectors)), unit_length(self.classes), groups, chunk=self.chunk
        )


class ClassLabels(NamedTuple):
    """Class of each image and of each text; -1 for a text that belongs to images of several classes."""

    images: Ints
    texts: Ints

    @classmethod
    def of(cls, matches: Matches, images: Ints) -> ClassLabels:
        """Derive text classes from image classes: a text has the class that all of its images share."""
        visual, text = matches.pairs()
        lowest = np.full(matches.shape[1], np.iinfo(np.int64).max)
        highest = np.full(matches.shape[1], -1)
        np.minimum.at(lowest, text, images[visual])
        np.maximum.at(highest, text, images[visual])
        return cls(images, np.where(lowest == highest, highest, -1).astype(np.int64))


def pseudo_classes(features: NDArray[np.float32], count: int, seed: int) -> Ints:
    """Cluster the images by K-means of their features (dual-path, Table IV)."""
    from sklearn.cluster import KMeans

    return KMeans(count, n_init=1, random_state=seed % 2**32).fit(features).labels_.astype(np.int64)  # type: ignore[no-any-return]
