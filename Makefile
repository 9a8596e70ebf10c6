# Every target sets up what it needs; `make demo` and `make test` work as the first command typed.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || echo python3.11)
# Of the newest clients: 3.12 or newer.
CLIENTS_PYTHON ?= python3.13
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# For example --port 3010.
UI_ARGS ?=
PYTEST_ARGS ?=
MUTANTS_ARGS ?=
# For example --units 500 --match latency.
BENCH_ARGS ?=
# Parts of the soak (default: all), and the fraction of their size.
PART ?=
SCALE ?= 1
SBOM ?= dist/sbom.cdx.json
# The builder as a URI; SLSA places its trust in the builder.
BUILDER ?= urn:kfm:nodd:builder:by-hand
# Half of the tests wait for daemons and servers, so a few more workers than processors keep these busy.
WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 2 )))

# Images often disable Python's byte code cache. Then every process of a test or run compiles 2,000 modules again, which
# is 5 of the 7 seconds that loading the definitions takes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo ui test lint clauses mutants truth clients lock bench soak docs dist sbom audit clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 10

$(INSTALLED): pyproject.toml requirements.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if command -v uv >/dev/null 2>&1; then \
		uv pip install -q -p $(BIN)/python --require-hashes -r requirements.lock && \
		uv pip install -q -p $(BIN)/python --no-deps -e . ; \
	else \
		$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock && \
		$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -e . ; \
	fi
	@touch $@

demo: $(INSTALLED)  ## ingest sample objects through a real queue, daemon and runs
	@$(BIN)/kfm demo

ui: $(INSTALLED)  ## open the Dagster UI and the console over the demo's data
	@$(BIN)/kfm ui $(UI_ARGS)

test: $(INSTALLED)  ## run the tests that a change must pass; KFM_TEST_ALL=1 runs all, walks and repetitions included
	@$(BIN)/pytest --changed --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: $(INSTALLED)  ## check with ruff, mypy --strict, import contracts and pymarkdown
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/pymarkdown scan README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md docs

clauses: $(INSTALLED)  ## list every clause with its tests
	@$(BIN)/pytest -q --no-header --clauses --clauses-out docs/spec/conformance.md -W ignore

mutants: $(INSTALLED)  ## break rules one by one in a copy; a test must fail for each (MUTANTS_ARGS="--changed", "--generated --sample 60")
	@$(BIN)/python -m kfm_dagster_tests.mutants $(MUTANTS_ARGS)

truth: $(INSTALLED)  ## compare every real object of ../shared/{data,nodd} with independent readers, field by field
	@$(BIN)/pytest -q --no-header kfm_dagster_tests/readers/test_truth.py

clients: pyproject.toml  ## install the clients of virtual stores in a newer Python, for their tests (CLIENTS_PYTHON=python3.13)
	@test -x .venv-clients/bin/python || $(CLIENTS_PYTHON) -m venv .venv-clients
	@.venv-clients/bin/python -m pip install -q --disable-pip-version-check -e '.[read,icechunk]' s3fs virtualizarr xpystac

bench: $(INSTALLED)  ## measure rates and latency for an hour, and write docs/performance.md
	@$(BIN)/python -m benchmarks.report $(BENCH_ARGS)

soak: $(INSTALLED)  ## run the long tests, for hours; PART="mail-sqlite chaos-sqlite" SCALE=0.1 select less
	@$(BIN)/python -m benchmarks.soak --scale="$(SCALE)" $(PART)

docs: $(INSTALLED)  ## build the documentation's site, with its reference from the code, into build/docs/site
	@$(BIN)/python -m docs_site build/docs

lock:  ## pin every dependency with its hashes, for each Python, and those of each image
	@uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --no-strip-extras --extra demo --extra dev \
		--python-version 3.11 pyproject.toml -o requirements.lock
	@uv pip compile -q --generate-hashes --no-emit-index-url --no-header --no-annotate --no-strip-extras \
		--extra announcements --extra celery --extra delta --extra energy --extra k8s --extra otlp --extra release --extra stac-api \
		--constraint requirements.lock --python-version 3.11 pyproject.toml -o deploy/image/requirements.lock
	@uv pip compile -q --generate-hashes --no-emit-index-url --no-header --no-annotate --no-strip-extras \
		--constraint requirements.lock --python-version 3.11 deploy/stac-api/requirements.in -o deploy/stac-api/requirements.lock

dist: $(INSTALLED)  ## build wheel and sdist into dist/, with their SBOM and their in-toto statement
	@rm -rf dist
	@uv build -q
	@$(MAKE) -s sbom
	@$(BIN)/python deploy/release/statement.py dist --builder "$(BUILDER)" > dist/provenance.intoto.json

sbom: $(INSTALLED)  ## list every locked package as CycloneDX
	@mkdir -p $(dir $(SBOM))
	@$(BIN)/python -W ignore -m cyclonedx_py requirements requirements.lock --pyproject pyproject.toml --output-reproducible -o $(SBOM)

audit: $(INSTALLED)  ## check every locked package for known vulnerabilities; needs the internet
	@# Strict, because a package that is missing from the list would otherwise count as safe.
	@said=$$($(BIN)/pip-audit --strict --progress-spinner off --disable-pip --require-hashes -r requirements.lock 2>&1); \
	code=$$?; \
	case "$$said" in \
		*Traceback*) echo "audit: the list cannot be asked; observed $$(echo "$$said" | tail -n 1); next: run it where pypi.org answers" ;; \
		*) echo "$$said" ;; \
	esac; \
	exit $$code

clean:  ## remove the files of the demo and of the tools
	@rm -rf .kfm .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/spec/conformance.md
