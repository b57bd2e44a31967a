"""Drawings of people, animals, objects and backdrops as polygons, and the rendering of a scene."""
