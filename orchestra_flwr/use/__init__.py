"""What a saved encoder is used for: embeddings of images, a page of them, labels from a few."""
