"""Words of a query that a matcher has never seen; they are told by its inputs."""

from calligram.features.unknown_words import UnknownWords as UnknownWords
