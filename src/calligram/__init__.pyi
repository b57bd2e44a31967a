from calligram import data as data
from calligram import evaluation as evaluation
from calligram import features as features
from calligram import losses as losses
from calligram import models as models
from calligram import recipes as recipes
from calligram import scenes as scenes
from calligram import search as search
from calligram import serve as serve
from calligram import studies as studies
from calligram import training as training
from calligram.data.collection import Collection as Collection
from calligram.errors import UserError as UserError
from calligram.evaluation.retrieval import evaluate_retrieval as evaluate_retrieval
from calligram.features.inputs import ImageInput as ImageInput
from calligram.features.inputs import TextInput as TextInput
from calligram.features.inputs import image_input as image_input
from calligram.features.inputs import text_input as text_input
from calligram.models.matcher import EmbeddingMatcher as EmbeddingMatcher
from calligram.models.matcher import Encoded as Encoded
from calligram.models.matcher import Matcher as Matcher
from calligram.recipes.parts.run import train_recipe as train_recipe
from calligram.search.indexing.run import index_source as index_source
from calligram.search.query.searcher import Searcher as Searcher
from calligram.training.runs import load_run as load_run

__version__: str
evaluate = evaluate_retrieval
load = load_run
train = train_recipe
