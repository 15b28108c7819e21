"""`python -m orchestra_flwr.evaluation`: as `orchestra-evaluate`."""

from orchestra_flwr.cli import evaluate_main

if __name__ == "__main__":
    raise SystemExit(evaluate_main())
