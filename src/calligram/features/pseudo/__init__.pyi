from calligram.features.pseudo.concepts import ConceptInput as ConceptInput
from calligram.features.pseudo.concepts import concept_names as concept_names
from calligram.features.pseudo.image_words import ImageWords as ImageWords
from calligram.features.pseudo.image_words import LabelClassifier as LabelClassifier
from calligram.features.pseudo.region_words import PseudoSentences as PseudoSentences
from calligram.features.pseudo.region_words import region_attributes as region_attributes
from calligram.features.pseudo.region_words import region_sentences as region_sentences
from calligram.features.pseudo.wordnet import WordNet as WordNet
