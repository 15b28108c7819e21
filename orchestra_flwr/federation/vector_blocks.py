"""Long vectors in blocks, so that what is worked on at a time stays in a processor's cache."""

from collections.abc import Iterable, Iterator

BLOCK = 1 << 16  # values


def blocks_of(spans: Iterable[slice]) -> Iterator[slice]:
    """The spans, cut into slices of at most `BLOCK` values."""
    for span in spans:
        for start in range(span.start, span.stop, BLOCK):
            yield slice(start, min(start + BLOCK, span.stop))
