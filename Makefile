# All commands run in .venv, which is created by the first target that needs it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Real data is found through these variables; they default to a data folder next to the checkout, if there is one.
ifneq ($(wildcard ../shared/scenes),)
export KDIFFHASH_SCENES ?= $(abspath ../shared/scenes)
endif
ifneq ($(wildcard ../shared/photos),)
export KDIFFHASH_PHOTOS ?= $(abspath ../shared/photos)
endif
ifneq ($(wildcard ../shared/embeddings),)
export KDIFFHASH_EMBEDDINGS ?= $(abspath ../shared/embeddings)
endif

.PHONY: demo test sanitized sanitize aarch64 selftest soak lint format docs bench dist clean

demo:
	@echo 'The demo takes about two minutes. It writes to this folder and to your cache folder:'
	@echo '  1. an environment in .venv: packages are downloaded, the core is compiled (once; a minute)'
	@echo '  2. a short version of the study on images that come with the packages (a minute)'
	@echo '  3. its report in demo-report/index.html'
	@echo
	@$(MAKE) --no-print-directory $(VENV)/.run
	@echo '[2 and 3] training, measuring and writing the report'
	@$(BIN)/kdiffhash study --quick --out demo-report
	@echo
	@echo 'Next, with your own files:'
	@echo '  . .venv/bin/activate                                      # puts kdiffhash on the path'
	@echo '  kdiffhash match A.jpg B.jpg -o matches.jpg                # two photographs of the same object'
	@echo '  kdiffhash train rows.npy --labels y.npy -o my.model       # your own rows (n, d) and labels (n)'

# For a quick run: pytest -m "not slow and not network"
test: lint $(if $(filter Linux,$(shell uname)),sanitize)
	$(BIN)/python -m pytest -n auto --dist worksteal

# Tests of the core, built with AddressSanitizer and UndefinedBehaviorSanitizer. The build goes to a separate package
# that PYTHONPATH puts before the editable install; an empty module replaces the import hook of that install.
SANITIZED := build/sanitize/package
sanitized: $(VENV)/.dev
	rm -rf $(SANITIZED)
	$(INSTALL) --no-build-isolation --no-deps --target $(SANITIZED) -Cbuild-dir=build/sanitize/core \
	  -Ccmake.define.SANITIZE=ON -Ccmake.define.STRICT=ON .
	touch $(SANITIZED)/_editable_skbc_kdiffhash.py

sanitize: sanitized
	PYTHONPATH=$(abspath $(SANITIZED)) PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	  $(BIN)/python -m pytest -q -n auto -p no:cacheprovider tests/native -k 'not test_codes'

# Self-test of the loops without Python: on this CPU, and on an emulated one.
SELFTEST = -std=c++17 -O3 -ffp-contract=off -Wall -Wextra -Wno-psabi -Werror -DLEVEL=base \
  $(filter-out native/module.cpp,$(wildcard native/*.cpp))
selftest:
	mkdir -p build
	$(CXX) $(SELFTEST) -o build/selftest
	build/selftest

aarch64:
	@command -v aarch64-linux-gnu-g++ > /dev/null && command -v qemu-aarch64 > /dev/null || \
	  { echo 'error: no cross-compiler or emulator found; run: apt-get install g++-aarch64-linux-gnu qemu-user'; exit 1; }
	mkdir -p build
	aarch64-linux-gnu-g++ -static $(SELFTEST) -o build/selftest-aarch64
	qemu-aarch64 build/selftest-aarch64

# Attacks on files, servers and the command line, with a fixed seed; at most 30 minutes. Wrong results and crashes must be 0.
# The outcomes are stored, and written to docs/reliability.md.
soak: $(VENV)/.dev $(if $(filter Linux,$(shell uname)),sanitized)
	$(BIN)/python benchmarks/soak.py
	$(BIN)/python benchmarks/write_tables.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell src native tests docs examples benchmarks README.md CHANGELOG.md
	$(BIN)/proselint --output-format compact check README.md CHANGELOG.md docs/*.md
	$(BIN)/clang-format --dry-run --Werror native/*.cpp native/*.h
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i native/*.cpp native/*.h

docs: $(VENV)/.dev
	$(BIN)/mkdocs build --strict
	@echo 'The site is in site/. To read it with its search: python3 -m http.server --directory site'

# Run all benchmarks, in the order of benchmarks/README.md, which takes hours. write_tables.py then updates the pages.
BENCHMARKS := untouched accuracy frontier prefix_codes ablations pretrained_model sequential_matching cross_modal \
  onnx_agreement embeddings paper_runs study interval_coverage readings domains viewpoint other_descriptors search float_queries range_search duplicates \
  comparison_rates approximate hnsw_crossover encode fit refinement_cost startup \
  encode_memory index_on_disk cells_on_disk postgres_store dask_scaling matching match_memory photo_updates turned_photos colmap scenes
bench: $(VENV)/.dev
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || exit 1; done
	$(BIN)/python benchmarks/write_tables.py

# Wheel and sdist, each installed and used in an empty environment.
dist: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	KDIFFHASH_DIST=$(abspath dist) $(BIN)/python -m pytest -q -p no:cacheprovider tests/test_public.py -k empty_environment
	@ls -l dist

$(VENV)/bin/python:
	@echo '[1] creating $(VENV) with $(PYTHON)'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'error: Python 3.11 or later is needed; name it by make PYTHON=python3.12'; exit 1; }
	@command -v $(CXX) > /dev/null || { echo 'error: no C++ compiler found; run: apt-get install g++'; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The core is compiled by the installation, which is repeated when a C++ file has changed. In the development environment,
# warnings are errors.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

$(VENV)/.run: $(VENV)/bin/python pyproject.toml CMakeLists.txt $(wildcard native/*)
	@echo '[1] installing packages and compiling the core'
	$(INSTALL) 'scikit-build-core>=0.10' 'nanobind>=2.4' cmake ninja
	$(INSTALL) --no-build-isolation -e '.[study]'
	touch $@

$(VENV)/.dev: $(VENV)/.run
	SKBUILD_CMAKE_DEFINE=STRICT=ON $(INSTALL) --no-build-isolation -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build demo-report site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
