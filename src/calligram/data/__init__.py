"""Collections of images and texts, the matches between them, and the import of data sets."""
