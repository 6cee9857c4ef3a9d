# `make` alone lists the habits. A machine needs Python 3.11 or later and make; Java 17 or later is used if it is there.
# Set-up happens by itself: the locked dependencies go into .venv whenever requirements.lock is newer than it.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
SHELL := /bin/bash

VENV  ?= .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
LAKE  ?= out/lake
ARGS  ?=
PYTEST = $(BIN)/python -m pytest --dist loadscope --no-loadscope-reorder
unexport PYTHONDONTWRITEBYTECODE  # each of hundreds of processes would compile rawlog again

# The first Python that is new enough; `make PYTHON=/some/python3.13 test` overrides.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

.PHONY: help setup kernels run quick test times fmt lint fuzz fuzz-guided deep faults brokers bench performance counts surface docs site picture man pythons ci lock sbom every-byte proof dist clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: setup ## ingest the sample files into a lake, then ask it a question
	$(BIN)/rawlog ingest samples --to $(LAKE) || test $$? -eq 1  # 1: damage was found, and some samples are damaged
	$(BIN)/rawlog query "SELECT topic, partition, count(*) AS records, min(offset) AS first, max(offset) AS last, \
	  sum(octet_length(value)) AS bytes FROM records GROUP BY topic, partition ORDER BY topic, partition" $(LAKE)
	@echo; echo "The lake is $(abspath $(LAKE)): Parquet files and an Iceberg catalog; ask it more with"
	@echo "  $(BIN)/rawlog query 'SELECT * FROM findings' $(LAKE)"

quick: setup ## the tests without brokers, browser, Spark and long cases, a few examples of each property; a sample of wounds (2 minutes)
	HYPOTHESIS_PROFILE=$(or $(HYPOTHESIS_PROFILE),few) $(PYTEST) -n 2 -m quick $(ARGS)

test: setup ## all tests, real brokers and Spark included, on three processes: tests wait for brokers half of the time (ARGS='tests/formats -k crc'; ARGS='-n 0' for one)
	$(PYTEST) -n 3 $(ARGS)

times: setup ## measure which tests are too long for `quick`, and write tests/long.txt again
	rm -f out/times; mkdir -p out
	RAWLOG_TIMES=out/times HYPOTHESIS_PROFILE=few $(PYTEST) -n 2 -m "not (broker or spark or browser or service)" $(ARGS); \
	  $(BIN)/python -m tests.times out/times

fmt: $(STAMP) ## format the code and sort its imports
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

lint: $(STAMP) ## style, types and imports; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fuzz: setup ## 2,000,000 damaged files and as many damaged stores of each family (ARGS='--kind files --seed 7 --seconds 600 --family kafka'); failures go to out/fuzz
	$(BIN)/python -m tests.fuzz $(ARGS)

fuzz-guided: setup ## readers under atheris, which is guided by coverage, a minute a format (ARGS='--seconds 600 --format kafka.log'); fetched when first used
	test -d out/atheris || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target out/atheris atheris==3.0.0
	PYTHONPATH=out/atheris $(BIN)/python -m tests.fuzz.guided $(ARGS)

deep: setup ## the property tests with the deep profile, random repairs, and every kind of wound, for as long as it takes
	HYPOTHESIS_PROFILE=deep RAWLOG_CASES=2000 $(BIN)/python -m pytest -m "not broker" --timeout=0 $(ARGS)

faults: setup ## ingest killed at thirty random moments and started again; the disks of thirty dead clusters rescued
	RAWLOG_KILLS=30 $(BIN)/python -m pytest tests/lakes/test_kills.py --timeout=0 -s $(ARGS)
	RAWLOG_RESCUES=30 $(BIN)/python -m pytest tests/rescue --timeout=0 -s $(ARGS)

brokers: setup ## real brokers, 3.9 and 4.3, on every kind of damaged directory: they do what verify predicts (20 minutes)
	RAWLOG_STARTUPS=1 $(BIN)/python -m pytest tests/startup --timeout=0 $(ARGS)

bench: setup ## measure, next to peers and limits, into out/bench.json (15 minutes); `python benchmarks/CASE.py` measures one alone
	$(BIN)/python benchmarks --default --json out/bench.json $(ARGS)

performance: bench ## measure, and write docs/performance.md again from it
	cp out/bench.json docs/performance.json && $(BIN)/python docs/build.py

counts: setup ## count the instructions of hot kernels, and write benchmarks/counts.json, with which a test compares them
	$(BIN)/python benchmarks/counts.py --write $(ARGS)

surface: $(STAMP) ## write the file of all public names again: tests/surface/surface.txt
	$(BIN)/python -m tests.surface.surface > tests/surface/surface.txt.new && mv tests/surface/surface.txt.new tests/surface/surface.txt

docs: $(STAMP) ## print the byte tables and rule pages of docs/ from their declarations
	$(BIN)/python docs/build.py $(ARGS)

site: setup ## the site into out/site: pages, reference, figures; links are checked, warnings are errors
	$(BIN)/python docs/site.py $(ARGS)

picture: setup ## the picture of the README again, from real output
	$(BIN)/python docs/picture.py

man: $(STAMP) ## the manual page into out/rawlog.1; `man out/rawlog.1` shows it
	@mkdir -p out && $(BIN)/python -m rawlog.cli.manual out/rawlog.1 && echo out/rawlog.1

pythons: setup ## the wheel in empty environments of Python 3.11 to 3.14, which are fetched, with the oldest and the newest requirements
	RAWLOG_PYTHONS=1 $(BIN)/python -m pytest tests/test_wheel.py $(ARGS)

ci: ## what CI runs: lint, the quick tests with all of their examples, the site, then all other tests
	$(MAKE) lint
	$(MAKE) quick HYPOTHESIS_PROFILE=usual
	$(MAKE) site
	$(MAKE) test ARGS='-m "not quick"'

lock: $(STAMP) ## refresh requirements.lock from pyproject.toml (ARGS=--upgrade for newer versions)
	$(BIN)/uv pip compile pyproject.toml --extra all --group dev --group docs --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links --quiet \
	  --custom-compile-command "make lock" --output-file requirements.lock $(ARGS)

every-byte: setup ## flip every bit of a file of each format, cut it at every length, and write docs/every-byte.json and its page again (5 minutes)
	$(BIN)/python -m tests.every_byte $(ARGS) && $(BIN)/python docs/build.py

proof: setup ## count what the tests declare, and write docs/proof.json and its page again
	$(BIN)/python docs/proof.py && $(BIN)/python docs/build.py

sbom: $(STAMP) ## the bill of materials, CycloneDX, from requirements.lock into out/rawlog.cdx.json
	$(BIN)/python docs/supply.py out/rawlog.cdx.json

dist: setup ## wheel, source archive, and the archive for spark-submit --py-files into dist/
	$(BIN)/python -m hatchling build --clean
	rm -f dist/rawlog-pyfiles.zip && $(BIN)/python -m rawlog.engines.spark.shipping dist/rawlog-pyfiles.zip

clean: ## remove what was made, .venv and all
	rm -rf $(VENV) out dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f src/rawlog/kernels/library.abi3.so
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

setup: $(STAMP) kernels

kernels: $(STAMP) ## compile the kernels ahead of time, if they changed (needs a C compiler; without one they are compiled when first used)
	@$(BIN)/python -m rawlog.kernels.build

# uv comes from the lock too, and only makes the rest quicker: pip does the same without it. Its cache would keep 2 GB of Spark's sources.
$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "rawlog needs Python 3.11 or later: none found (make PYTHON=... says where)" >&2; exit 2; }
	@echo "Setting up $(VENV) (once for each requirements.lock) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(sed -n 's/^\(uv==[0-9.]*\).*/\1/p' requirements.lock)" \
	  && $(BIN)/uv pip install --quiet --no-cache --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock \
	  || $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m rawlog.engines.spark.java || true  # Spark then starts in half the time; nothing depends on it
	@touch $(STAMP)
