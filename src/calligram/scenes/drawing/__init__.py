"""Polygons of people, animals, objects and places, and how a scene becomes pixels."""
