"""The recipes there are."""

from __future__ import annotations

from collections.abc import Mapping

from calligram.errors import unknown
from calligram.recipes import pretrained, vse
from calligram.recipes.plan import Recipe

RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "vse", "image branch and GRU into one space, triplet or InfoNCE loss (vse++)", vse.VSERecipe(), vse.plan
        ),
        Recipe(
            "pretrained",
            "a dual encoder of transformers (CLIP, SigLIP, ...), as it is or fine-tuned",
            pretrained.PretrainedRecipe(),
            pretrained.plan,
        ),
    )
}


def recipe_named(name: str) -> Recipe:
    """A recipe, or an error that suggests the nearest."""
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]
