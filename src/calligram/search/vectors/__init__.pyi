from calligram.search.vectors.index import Index as Index
from calligram.search.vectors.lance import LanceIndex as LanceIndex
from calligram.search.vectors.lance import prune as prune
from calligram.search.vectors.lance import tidy as tidy
from calligram.search.vectors.milvus import MilvusIndex as MilvusIndex
