from calligram.search.indexing.forget import forget_items as forget_items
from calligram.search.indexing.ray import stage_over_ray as stage_over_ray
from calligram.search.indexing.run import IndexReport as IndexReport
from calligram.search.indexing.run import index_source as index_source
from calligram.search.indexing.run import stage_source as stage_source
from calligram.search.indexing.shards import Shard as Shard
from calligram.search.indexing.thumbnails import thumbnail as thumbnail
