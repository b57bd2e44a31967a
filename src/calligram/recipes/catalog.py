"""The recipes there are."""

from __future__ import annotations

from collections.abc import Mapping

from calligram.errors import unknown
from calligram.recipes import a3vse, aoq, baselines, best, distil, dual_path, ensemble, pairs, phrases, two_branch
from calligram.recipes.parts.run import Recipe

RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "vse",
            "image branch and GRU into one space, triplet or InfoNCE loss (vse++)",
            pairs.VSERecipe(),
            pairs.plan_vse,
        ),
        Recipe(
            "pretrained",
            "a dual encoder of transformers (CLIP, SigLIP, ...), as it is or fine-tuned",
            pairs.PretrainedRecipe(),
            pairs.plan_pretrained,
        ),
        Recipe(
            "dual-path",
            "image CNN and text CNN, instance loss and then ranking, end to end in two stages (dual-path)",
            dual_path.DualPathRecipe(),
            dual_path.plan,
        ),
        Recipe(
            "fragments",
            "regions or cells and words by attention or reasoning: scan, bfan, vsrn, a3vse or mmca",
            pairs.FragmentsRecipe(),
            pairs.plan_fragments,
        ),
        Recipe(
            "ensemble",
            "the mean of several runs' scores; the published numbers of scan, bfan and vsrn are of two",
            ensemble.EnsembleRecipe(),
            ensemble.plan_ensemble,
            learns=False,
        ),
        Recipe(
            "aoq",
            "any matcher with online and mined offline negatives, in two rounds (aoq)",
            aoq.AOQRecipe(),
            aoq.plan,
        ),
        Recipe(
            "a3vse",
            "any matcher from few captions, and pseudo pairs of images without any, with adversaries (a3vse)",
            a3vse.A3VSERecipe(),
            a3vse.plan,
        ),
        Recipe(
            "best",
            "backbone and text encoder end to end with mmca, vse or others on top, one or several in one run",
            best.BestRecipe(),
            best.plan,
        ),
        Recipe(
            "distil",
            "a matcher of vectors that follows the scores of another run, such as one of mmca",
            distil.DistilRecipe(),
            distil.plan,
        ),
        Recipe(
            "two-branch",
            "image features and text vectors by two branches into one space, ranking loss (two-branch)",
            two_branch.TwoBranchRecipe(),
            two_branch.plan,
        ),
        Recipe(
            "two-branch-similarity",
            "the same branches, multiplied and scored by further layers, logistic loss (two-branch)",
            two_branch.TwoBranchSimilarityRecipe(),
            two_branch.plan_similarity,
        ),
        Recipe(
            "two-branch-phrases",
            "regions and phrases by two branches, to find what a phrase speaks of (two-branch)",
            phrases.PhrasesRecipe(),
            phrases.plan,
        ),
        Recipe(
            "combined",
            "an image-sentence run and a region-phrase run, their distances weighted (two-branch, Eq. 8)",
            ensemble.CombinedRecipe(),
            ensemble.plan_combined,
        ),
        Recipe(
            "tags",
            "labels of a classifier against the words of a text, without a caption to learn from (baseline of a3vse)",
            baselines.TagsRecipe(),
            baselines.plan_tags,
            learns=False,
        ),
        Recipe(
            "cca",
            "canonical correlation analysis in one pass, the baseline of two-branch",
            baselines.CCARecipe(),
            baselines.plan_cca,
        ),
    )
}


def find_recipe(name: str) -> Recipe:
    """A recipe, or an error that suggests the nearest."""
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]
