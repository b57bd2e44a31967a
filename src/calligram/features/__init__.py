"""Inputs of matchers: turn images and texts into tensors, from stored features or on the fly."""
