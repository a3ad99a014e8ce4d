# Each target sets up .venv by itself: on a fresh machine one command is enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := demo

.PHONY: setup develop demo test check format bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    join the bundled fragments of three torn pictures"
	@echo "make test    run the tests"
	@echo "make check   ruff and mypy"
	@echo "make bench   the slow measurements of docs/results.md (SHARED=folder with photos/ and fragments/)"

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

setup: $(VENV)/.ready

develop: $(VENV)/.ready-to-develop

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.ready-to-develop: $(VENV)/.ready
	$(INSTALL) --editable '.[dev]'
	@touch $@

demo: setup
	$(BIN)/pairingnet solve examples/sample $(DEMO)
	@echo
	@echo "Run      $(BIN)/pairingnet --help            what else it does; README.md says how to install it for good"
	@echo "Open     $(DEMO)/report.html                groups, joins with their probabilities, and why"
	@echo "Look at  $(DEMO)/groups/                    a picture of every group"
	@echo "         $(DEMO)/pieces/contact_sheet.jpg   the fragments that were found in the scans"

# One process a core, one thread each: several pools of threads on the same cores are many times slower.
test: develop
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest --numprocesses auto --dist loadfile

check: develop
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: develop
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	@test -n "$(SHARED)" || { echo "Say where the pictures are: make bench SHARED=path (a folder with photos/ and fragments/)"; exit 1; }
	$(BIN)/python -m benchmarks.foundations --shared $(SHARED)

clean:
	rm -rf $(VENV) $(DEMO) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
