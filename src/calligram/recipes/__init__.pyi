from calligram.recipes import parts as parts
from calligram.recipes.catalog import Recipe as Recipe
from calligram.recipes.catalog import find_recipe as find_recipe
from calligram.recipes.parts.run import run_recipe as run_recipe
from calligram.recipes.parts.run import train_recipe as train_recipe
