"""`python -m orchestra_flwr.evaluation`: evaluates a saved encoder."""

from orchestra_flwr.cli import evaluate_main

if __name__ == "__main__":
    raise SystemExit(evaluate_main())
