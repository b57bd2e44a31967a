# Everything runs in .venv, built here from constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
# Byte code is made at the first import, of what is imported, rather than of everything at once. Without it every process
# would compile torch again.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: demo test quick check chromium format bench soak hostile report docs clean

# With photographs beside the checkout (CALLIGRAM_ASSETS), the demo shows these; else drawn scenes.
PHOTOGRAPHS := $(if $(CALLIGRAM_ASSETS),$(if $(wildcard $(CALLIGRAM_ASSETS)/flickr8k),--photographs $(CALLIGRAM_ASSETS)))

demo: .venv/serve  ## set up, draw scenes, train, measure, index, serve; SERVE=0 stops before serving
	$(BIN)/calligram demo $(PHOTOGRAPHS) $(if $(filter 0,$(SERVE)),--no-serve)

test: check chromium  ## set up, then lint, types and tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

quick: .venv/dev  ## after each edit: lint, and the tests that need no server, browser, process or trained run
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow"

check: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	MYPY_NUM_WORKERS=2 $(BIN)/mypy

# The page is tested in the system's browser. Where it cannot be installed here, its tests fail and say what would do it.
chromium:
	@for browser in chromium chromium-browser google-chrome; do command -v $$browser >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null || true; fi

format: .venv/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/dev  ## measure speed and memory into results/bench.json
	$(BIN)/python bench/run.py

soak: .venv/dev  ## processes that are killed at random, compared with a model; SECONDS=600
	OMP_NUM_THREADS=1 $(BIN)/python tests/hostile/soak.py $(or $(SECONDS),600)

hostile: .venv/dev  ## 600 damaged files, 2,000 malformed inputs, 320 failing machines, 64 clients with 5% hostile requests
	OMP_NUM_THREADS=1 $(BIN)/python tests/hostile/flips.py 600
	OMP_NUM_THREADS=1 $(BIN)/python tests/hostile/inputs.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/hostile/machine.py 320
	$(BIN)/python tests/hostile/clients.py $(or $(SECONDS),600)

report: .venv/core  ## docs/results/ from results/
	$(BIN)/calligram report

docs: .venv/docs  ## the website, into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "The website is in site/. Open site/index.html, or with its search: $(BIN)/python -m http.server -d site 8080"

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv

# torch first and alone: its constraint then holds for whatever else asks for it.
.venv/core: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) -e .
	touch $@

.venv/serve: .venv/core
	$(PIP) -e '.[serve]'
	touch $@

.venv/docs: .venv/core
	$(PIP) -e '.[docs]'
	touch $@

.venv/dev: .venv/core
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf .venv demo build dist site
