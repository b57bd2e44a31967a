"""The recipes by name. A recipe's module is imported when its settings or its plan are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from calligram.errors import unknown

if TYPE_CHECKING:
    from calligram.data.collection import Collection
    from calligram.recipes.parts.run import Plan, RunContext


@dataclass(frozen=True)
class Recipe:
    """A named way to make a matcher from a collection."""

    name: str
    description: str
    module: str
    """in ``calligram.recipes``"""
    settings: str
    """name of the settings class in that module"""
    planner: str = "plan"
    """name of the function in that module that makes a plan from settings, a collection and a context"""
    learns: bool = True
    """whether it needs captioned images in train, and in dev to select a checkpoint"""

    @property
    def defaults(self) -> Any:
        """The settings with their default values."""
        return self._load(self.settings)()

    @property
    def plan(self) -> Callable[[Any, Collection, RunContext], Plan]:
        """The function that makes the plan of a run."""
        return self._load(self.planner)  # type: ignore[no-any-return]

    def _load(self, name: str) -> Any:
        return getattr(import_module(f"calligram.recipes.{self.module}"), name)


RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "vse",
            "joint embedding of an image network and a GRU, triplet or InfoNCE loss (vse++)",
            "pairs", "VSERecipe", "plan_vse",
        ),
        Recipe(
            "pretrained",
            "dual encoder of transformers (CLIP, SigLIP, ...), as it is or fine-tuned",
            "pairs", "PretrainedRecipe", "plan_pretrained",
        ),
        Recipe(
            "dual-path",
            "image CNN and text CNN in two stages: instance loss, then also ranking loss end to end (dual-path)",
            "dual_path", "DualPathRecipe",
        ),
        Recipe(
            "fragments",
            "matcher of image regions (or grid cells) and words: scan, bfan, vsrn, a3vse or mmca",
            "pairs", "FragmentsRecipe", "plan_fragments",
        ),
        Recipe(
            "ensemble",
            "mean of the scores of several runs; the published numbers of scan, bfan and vsrn use two models",
            "ensemble", "EnsembleRecipe", "plan_ensemble", learns=False,
        ),
        Recipe(
            "aoq",
            "any matcher, trained in two rounds with online and mined offline negatives (aoq)",
            "aoq", "AOQRecipe",
        ),
        Recipe(
            "a3vse",
            "any matcher, trained on few captions, on pseudo pairs of uncaptioned images, and adversarially (a3vse)",
            "a3vse", "A3VSERecipe",
        ),
        Recipe(
            "best",
            "backbone and text encoder trained end to end, with one matcher or an ensemble (mmca, vse, ...) on top",
            "best", "BestRecipe",
        ),
        Recipe(
            "distil",
            "matcher of vectors, distilled from the scores of another run such as mmca",
            "distil", "DistilRecipe",
        ),
        Recipe(
            "two-branch",
            "embedding network: image features and text vectors through two branches, ranking loss (two-branch)",
            "two_branch", "TwoBranchRecipe",
        ),
        Recipe(
            "two-branch-similarity",
            "similarity network: the same branches, their product scored by FC layers, logistic loss (two-branch)",
            "two_branch", "TwoBranchSimilarityRecipe", "plan_similarity",
        ),
        Recipe(
            "two-branch-phrases",
            "two branches for regions and phrases, for phrase localization (two-branch)",
            "phrases", "PhrasesRecipe",
        ),
        Recipe(
            "combined",
            "weighted sum of the distances of an image-sentence run and a region-phrase run (two-branch, Eq. 8)",
            "ensemble", "CombinedRecipe", "plan_combined",
        ),
        Recipe(
            "tags",
            "labels of a classifier compared with the words of a text, no captions needed (baseline of a3vse)",
            "baselines", "TagsRecipe", "plan_tags", learns=False,
        ),
        Recipe(
            "cca",
            "canonical correlation analysis in one pass (baseline of two-branch)",
            "baselines", "CCARecipe", "plan_cca",
        ),
    )
}  # fmt: skip


def find_recipe(name: str) -> Recipe:
    """Return a recipe by name; the error for an unknown name suggests the nearest one."""
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]
