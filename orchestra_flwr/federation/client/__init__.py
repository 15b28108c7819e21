"""A federated client, with and without Flower's runtime."""
