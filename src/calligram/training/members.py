"""Training the members of an ensemble side by side, in one run."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from calligram.models.combine import Ensemble
from calligram.models.matcher import Encoded, Matcher
from calligram.training.batch import Batch
from calligram.training.objectives import Objective


class MembersObjective(Objective):
    """The sum of what each member of an ensemble minimises on its own.

    Members see the same batches and nothing of each other, so that each learns what it would learn alone.
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        """Args:
        objectives: one for each member.
        """
        super().__init__()
        self.objectives = nn.ModuleList(objectives)

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """The terms of every member, by its number from 1 on."""
        assert isinstance(matcher, Ensemble)
        found: dict[str, Tensor] = {}
        self.measures = {}
        members = zip(self.objectives, matcher.each(images, texts), strict=True)
        for number, (objective, (member, one, two)) in enumerate(members, 1):
            assert isinstance(objective, Objective)
            own = objective.terms(member, batch, one, two)
            found |= {f"{number}_{name}": term for name, term in own.items()}
            self.measures |= {f"{number}_{name}": value for name, value in objective.measures.items()}
        return found
