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
from calligram.data.readers.catalog import import_collection as import_collection
from calligram.data.readers.catalog import reader as reader
from calligram.errors import UserError as UserError
from calligram.evaluation.retrieval import evaluate_retrieval as evaluate_retrieval
from calligram.evaluation.trained_run import TrainedRun as TrainedRun
from calligram.evaluation.trained_run import open_run as open_run
from calligram.features.inputs import ImageInput as ImageInput
from calligram.features.inputs import Inputs as Inputs
from calligram.features.inputs import TextInput as TextInput
from calligram.features.inputs import default_inputs as default_inputs
from calligram.features.inputs import image_input as image_input
from calligram.features.inputs import text_input as text_input
from calligram.features.pseudo.sentences import PseudoSettings as PseudoSettings
from calligram.features.texts.text_vectors import TextVectorSettings as TextVectorSettings
from calligram.models.catalog import matcher as matcher
from calligram.models.export import export_onnx as export_onnx
from calligram.models.matcher import EmbeddingMatcher as EmbeddingMatcher
from calligram.models.matcher import Encoded as Encoded
from calligram.models.matcher import Matcher as Matcher
from calligram.recipes.fit import fit as fit
from calligram.recipes.parts import terms as terms
from calligram.recipes.parts.run import train_preset as train_preset
from calligram.recipes.parts.run_settings import Optimisation as Optimisation
from calligram.recipes.parts.run_settings import SparseSettings as SparseSettings
from calligram.recipes.parts.run_settings import stage as stage
from calligram.recipes.parts.terms import Term as Term
from calligram.recipes.parts.terms import term as term
from calligram.recipes.parts.tower_settings import CNNSettings as CNNSettings
from calligram.recipes.parts.tower_settings import ImageSettings as ImageSettings
from calligram.recipes.parts.tower_settings import TextSettings as TextSettings
from calligram.search.indexing.run import index as index
from calligram.search.indexing.run import index_source as index_source
from calligram.search.query.searcher import Searcher as Searcher

__version__: str
evaluate = evaluate_retrieval
inputs = default_inputs
load = open_run
train = train_preset
