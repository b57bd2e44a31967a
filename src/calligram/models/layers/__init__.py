"""Layers that several matchers share."""
