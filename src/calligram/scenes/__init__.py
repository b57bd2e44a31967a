"""Illustrated scenes with captions, boxes, identities and every true pair: a data set that needs no download."""
