"""Conditions on metadata: parsed, checked and translated for each engine."""
