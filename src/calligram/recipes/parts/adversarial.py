"""The adversarial term: discriminators of captioned images, captions, other images and pseudo-sentences (a3vse)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from calligram.recipes.parts.run_settings import RARE
from calligram.recipes.parts.terms import Term
from calligram.training.objectives.pseudo_pairs import Adversary, AdversaryTerms


@dataclass(frozen=True)
class Adversarial(Term):
    """Six discriminators of the four domains, for three kinds of alignment (a3vse, Eqs. 4-8); needs pseudo pairs."""

    name = "adversarial"

    weight: Annotated[float, "weight of the term in the loss", (0, 1000)] = 1.0
    intra: Annotated[
        tuple[float, float],
        "weights of two discriminators: annotated against other images, and captions against pseudo-sentences",
        (0, 1000),
    ] = (0.2, 0.1)
    cross: Annotated[
        tuple[float, float],
        "weights of two discriminators of images against texts: of annotated pairs, and of pseudo pairs",
        (0, 1000),
    ] = (0.5, 0.5)
    trans: Annotated[
        tuple[float, float],
        "weights of two discriminators: annotated images against pseudo-sentences, and other images against captions",
        (0, 1000),
    ] = (0.3, 0.3)
    steepness: Annotated[
        float, "steepness of the schedule by which gradient reversal increases, eta", (0, 1000), RARE
    ] = 10.0
    hidden: Annotated[int, "dimension of the hidden layer of a discriminator; 0 for a linear one", (0, 65536), RARE] = (
        512
    )

    def adversary(self, vector_size: int) -> Adversary | None:
        """Return the discriminators; None where all weights are zero."""
        intra, cross, trans = (
            (self.weight * one, self.weight * two) for one, two in (self.intra, self.cross, self.trans)
        )
        terms = AdversaryTerms(intra, cross, trans, self.steepness, self.hidden)
        return Adversary(vector_size, terms) if any(terms.weights().values()) else None
