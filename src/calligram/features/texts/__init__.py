"""Text inputs: vocabularies, word pieces, text encoders, word vectors, text vectors."""
