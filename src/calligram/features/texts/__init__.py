"""Text inputs: vocabularies, word pieces, text encoders, word vectors and text vectors."""
