"""A library on disk: manifest, tables, matchers."""
