"""Training on annotated pairs and pseudo pairs together, with domain discriminators that only training uses."""

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
    """Weights of the six domain losses, two of each kind (a3vse, Eqs. 5-7); the defaults are the paper's (Sec. 4.3)."""

    intra: tuple[float, float] = (0.2, 0.1)
    """images against pseudo images, and texts against pseudo-sentences"""
    cross: tuple[float, float] = (0.5, 0.5)
    """images against texts, and pseudo images against pseudo-sentences"""
    trans: tuple[float, float] = (0.3, 0.3)
    """images against pseudo-sentences, and pseudo images against texts"""
    steepness: float = 10.0
    """eta, steepness of the increase of the gradient reversal"""
    hidden: int = 512
    """size of a discriminator's hidden layer; 0 for a linear one"""

    def weights(self) -> dict[tuple[Domain, Domain], float]:
        """Weights by pair of domains."""
        of_kind: Mapping[DomainPairKind, tuple[float, float]] = {
            "intra": self.intra,
            "cross": self.cross,
            "trans": self.trans,
        }
        turns = {kind: iter(values) for kind, values in of_kind.items()}
        return {pair: next(turns[DOMAIN_PAIR_KINDS[pair]]) for pair in DOMAIN_PAIR_KINDS}


class Adversary(nn.Module):
    """Six discriminators, each for two of the four domains, behind gradient reversal (a3vse, Eqs. 4-8).

    Discriminators of weight zero are left out. The paper does not give the architecture of a discriminator; here it has
    one hidden layer with ReLU. Its input is unit vectors, as in the scores: otherwise domains could be distinguished by
    length alone, and no score would change. The weights also apply to the discriminators' own losses, as in Eq. 10.
    """

    def __init__(self, dim: int, terms: AdversaryTerms = AdversaryTerms()) -> None:  # noqa: B008  frozen
        super().__init__()
        self.steepness = terms.steepness
        self.weights = {pair: weight for pair, weight in terms.weights().items() if weight}
        self.discriminators = nn.ModuleDict(
            {_pair_name(pair): discriminator(dim, terms.hidden) for pair in DOMAIN_PAIRS if pair in self.weights}
        )

    def forward(self, domains: Mapping[Domain, Tensor], progress: float) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the three terms and the error rates of their discriminators, from the vectors (N, D) of each domain.

        Args:
            progress: share of training that is done, which sets the strength of the reversal.
        """
        strength = reversal_strength(progress, self.steepness)
        reversed_vectors = {name: reverse_gradient(unit_length(v).to(v.dtype), strength) for name, v in domains.items()}
        terms: dict[str, Tensor] = {}
        errors: dict[str, list[Tensor]] = {}
        for pair, weight in self.weights.items():
            first, second = (
                self.discriminators[_pair_name(pair)](reversed_vectors[domain]).squeeze(-1) for domain in pair
            )
            kind = DOMAIN_PAIR_KINDS[pair]
            loss = weight * domain_loss(first, second)
            terms[kind] = terms[kind] + loss if kind in terms else loss
            errors.setdefault(f"{kind}_error", []).append(domain_error(first, second).detach())
        return terms, {name: torch.stack(found).mean() for name, found in errors.items()}


def discriminator(dim: int, hidden: int) -> nn.Module:
    """A network from vectors to the logit of the first domain."""
    if not hidden:
        return nn.Linear(dim, 1)
    return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))


def _pair_name(pair: tuple[Domain, Domain]) -> str:
    return "-".join(pair)


class PseudoPairObjective(Objective):
    """beta L(annotated) + (1 - beta) L(pseudo) + L_adv (a3vse, Eqs. 3 and 9).

    The discriminators are used in training only, so they belong to this objective and not to the matcher. Eq. 3 as
    printed encodes its sentences with the image encoder; the text encoder is meant.
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
        span: start and end of this objective's stage, as shares of all training.
        """
        super().__init__()
        self.annotated, self.pseudo, self.adversary = annotated, pseudo, adversary
        self.beta, self.span = beta, span

    def forward(self, matcher: Matcher, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of both batches, those of pseudo pairs with the prefix ``pseudo_``, and the three
        adversarial terms.
        """
        if not isinstance(batch, PseudoPairBatch) or batch.pseudo is None:
            raise ValueError("this objective needs batches with pseudo pairs; use PseudoPairBatches")
        annotated = self.annotated.encode(matcher, batch)
        self._encoded = self.annotated._encoded
        pseudo = self.pseudo.encode(matcher, batch.pseudo)
        found = {name: self.beta * term for name, term in self.annotated.terms(matcher, batch, *annotated).items()}
        pseudo_terms = self.pseudo.terms(matcher, batch.pseudo, *pseudo)
        found |= {f"pseudo_{name}": (1 - self.beta) * term for name, term in pseudo_terms.items()}
        self.measures = dict(self.annotated.measures)
        if self.adversary is not None:
            start, end = self.span
            domains: dict[Domain, Tensor] = {
                "image": annotated[0].vectors,
                "pseudo_image": pseudo[0].vectors,
                "text": annotated[1].vectors,
                "pseudo_text": pseudo[1].vectors,
            }
            terms, errors = self.adversary(domains, start + (end - start) * self.progress)
            found |= terms
            self.measures |= errors
        return found
