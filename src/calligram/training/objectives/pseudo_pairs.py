"""What is learnt from annotated and pseudo pairs together, and the discriminators that only training needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from calligram.losses.adversarial import (
    DOMAIN_PAIR_KINDS,
    DOMAIN_PAIRS,
    Domain,
    DomainPairKind,
    domain_error,
    domain_loss,
    reversal_strength,
    reverse_gradient,
)
from calligram.models.matcher import Matcher
from calligram.training.batches.batch import Batch
from calligram.training.batches.pseudo_pairs import PseudoPairBatch
from calligram.training.objectives.objective import Objective
from calligram.vectors import unit_length


@dataclass(frozen=True)
class AdversaryTerms:
    """Weights of the six domain losses, two of a kind (a3vse, Eqs. 5-7); the defaults are the paper's (Sec. 4.3)."""

    intra: tuple[float, float] = (0.2, 0.1)
    """of images and pseudo images, and of texts and pseudo-sentences"""
    cross: tuple[float, float] = (0.5, 0.5)
    """of images and texts, and of pseudo images and pseudo-sentences"""
    trans: tuple[float, float] = (0.3, 0.3)
    """of images and pseudo-sentences, and of pseudo images and texts"""
    steepness: float = 10.0
    """eta, of how the reversal sets in"""
    hidden: int = 512
    """size of a discriminator's hidden layer; 0 for a linear one"""

    def weights(self) -> dict[tuple[Domain, Domain], float]:
        """By pair of domains."""
        of_kind: Mapping[DomainPairKind, tuple[float, float]] = {
            "intra": self.intra,
            "cross": self.cross,
            "trans": self.trans,
        }
        turns = {kind: iter(values) for kind, values in of_kind.items()}
        return {pair: next(turns[DOMAIN_PAIR_KINDS[pair]]) for pair in DOMAIN_PAIR_KINDS}


class Adversary(nn.Module):
    """Six discriminators, each of two of the four domains, behind gradient reversal (a3vse, Eqs. 4-8).

    Those of weight zero are not there. The paper does not say what a discriminator is: one hidden layer with ReLU. It
    sees vectors at length one, as scores do; by their length alone domains could be told apart, and no score would
    change. Weights are on the discriminators' own losses as well, as Eq. 10 has it.
    """

    def __init__(self, dim: int, terms: AdversaryTerms = AdversaryTerms()) -> None:  # noqa: B008  frozen
        super().__init__()
        self.steepness = terms.steepness
        self.weights = {pair: weight for pair, weight in terms.weights().items() if weight}
        self.discriminators = nn.ModuleDict(
            {_pair_name(pair): discriminator(dim, terms.hidden) for pair in DOMAIN_PAIRS if pair in self.weights}
        )

    def forward(self, domains: Mapping[Domain, Tensor], progress: float) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The three terms and the errors of their discriminators, from the vectors (N, D) of each domain.

        Args:
            progress: share of training that is done, which the strength of the reversal follows.
        """
        strength = reversal_strength(progress, self.steepness)
        seen = {name: reverse_gradient(unit_length(v).to(v.dtype), strength) for name, v in domains.items()}
        terms: dict[str, Tensor] = {}
        errors: dict[str, list[Tensor]] = {}
        for pair, weight in self.weights.items():
            first, second = (self.discriminators[_pair_name(pair)](seen[domain]).squeeze(-1) for domain in pair)
            kind = DOMAIN_PAIR_KINDS[pair]
            loss = weight * domain_loss(first, second)
            terms[kind] = terms[kind] + loss if kind in terms else loss
            errors.setdefault(f"{kind}_error", []).append(domain_error(first, second).detach())
        return terms, {name: torch.stack(found).mean() for name, found in errors.items()}


def discriminator(dim: int, hidden: int) -> nn.Module:
    """From vectors to the logit of being of the first domain."""
    if not hidden:
        return nn.Linear(dim, 1)
    return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))


def _pair_name(pair: tuple[Domain, Domain]) -> str:
    return "-".join(pair)


class PseudoPairObjective(Objective):
    """beta L(annotated) + (1 - beta) L(pseudo) + L_adv (a3vse, Eqs. 3 and 9).

    The discriminators are used in training only, so they are this objective's and not the matcher's. Eq. 3 as printed
    encodes its sentences by the image side; the text side is meant.
    """

    def __init__(
        self,
        annotated: Objective,
        pseudo: Objective,
        beta: float = 0.8,
        adversary: Adversary | None = None,
        span: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        """Args:
        beta: weight of annotated pairs.
        adversary: None for no adversarial terms.
        span: the part of all training that this objective's stage covers.
        """
        super().__init__()
        self.annotated, self.pseudo, self.adversary = annotated, pseudo, adversary
        self.beta, self.span = beta, span

    def forward(self, matcher: Matcher, batch: Batch) -> dict[str, Tensor]:
        """The terms of both batches, those of pseudo pairs by ``pseudo_``, and of the three kinds of alignment."""
        if not isinstance(batch, PseudoPairBatch) or batch.pseudo is None:
            raise ValueError("this objective needs pseudo pairs beside the others; take batches of WeakBatches")
        own = self.annotated.encode(matcher, batch)
        self.spread = self.annotated.spread
        beside = self.pseudo.encode(matcher, batch.pseudo)
        found = {name: self.beta * term for name, term in self.annotated.terms(matcher, batch, *own).items()}
        weak = self.pseudo.terms(matcher, batch.pseudo, *beside)
        found |= {f"pseudo_{name}": (1 - self.beta) * term for name, term in weak.items()}
        self.measures = dict(self.annotated.measures)
        if self.adversary is not None:
            start, end = self.span
            domains: dict[Domain, Tensor] = {
                "image": own[0].vectors,
                "pseudo_image": beside[0].vectors,
                "text": own[1].vectors,
                "pseudo_text": beside[1].vectors,
            }
            terms, errors = self.adversary(domains, start + (end - start) * self.progress)
            found |= terms
            self.measures |= errors
        return found
