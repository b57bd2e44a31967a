"""Readers of data set formats."""
