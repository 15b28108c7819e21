"""What can be added to any method's loss: one file a term, found by its name."""

from orchestra_flwr.terms.base import Term

__all__ = ["Term"]
