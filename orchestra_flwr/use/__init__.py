"""Uses of a saved encoder: embeddings of images, a page of them, labels for all from a few."""
