from calligram.search.vectors.exact import ExactSearch as ExactSearch
from calligram.search.vectors.index import Index as Index
from calligram.search.vectors.index import VectorHit as VectorHit
from calligram.search.vectors.lance import LanceIndex as LanceIndex
from calligram.search.vectors.milvus import MilvusIndex as MilvusIndex
