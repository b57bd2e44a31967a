"""Trainable maps from inputs to scores. They encode and score; they do not train, log or parse options."""
