"""Generated scenes with captions, boxes, identities and all true pairs: a data set without a download."""
