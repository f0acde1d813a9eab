PYTHON ?= python3

BIN := .venv/bin
INSTALLED := .venv/.installed
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help .venv test test-slow test-all lint format bench demo docs dist clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z.-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv: $(INSTALLED) ## Install the pinned environment and the package, editable

$(INSTALLED): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("drill needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@echo "installing torch and the rest of requirements.txt into .venv: 2 GB on disk for a CPU, several more with CUDA; pip says nothing for some minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

test: lint ## Check style, types and all tests but the slow ones
	$(PYTEST) -m "not slow"

test-slow: $(INSTALLED) ## Run the slow tests
	$(PYTEST) -m slow

test-all: test test-slow ## Run every check

lint: $(INSTALLED) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED) ## Rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## Run the benchmarks in bench/ that need no corpus
	status=0; for name in layers loss memory inference lstm step translation gpt; do \
		$(BIN)/python bench/$$name.py $(OPTIONS) || status=1; \
	done; exit $$status

demo: $(INSTALLED) ## Train two output layers on the World English Bible and compare them
	$(BIN)/python -m drill demo

docs: $(INSTALLED) ## Build the documentation site into build/site
	$(BIN)/python -m pip install --quiet --requirement docs/requirements.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "built build/site: $(BIN)/python -m http.server --directory build/site"

dist: $(INSTALLED) ## Build wheel and sdist into dist/
	$(BIN)/python -m build --no-isolation

clean: ## Remove build outputs and caches; .venv and runs stay
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
