"""`python -m orchestra_flwr.embed`: embeddings of images, and a page to look at."""

from orchestra_flwr.cli import embed_main

if __name__ == "__main__":
    raise SystemExit(embed_main())
