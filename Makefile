# Each target sets up what it needs, in a virtual environment.
#   make demo                    trains a small language model; EXTRAS=cuda13 for an NVIDIA GPU
#   make test                    the tests, on the CPU
#   make lint types aot bench    formatting and lint, types, compiling for an H200, measuring on one
# VENV=folder names the environment, PYTHON=/path/to/python the interpreter it is made with.

VENV ?= .venv
PYTHON ?=
EXTRAS ?=
PYTEST_ARGS ?= -n auto --maxprocesses=8

bin := $(VENV)/bin
empty :=
space := $(empty) $(empty)
comma := ,
# The file that says which extras the environment has: those of the target and of EXTRAS.
with = $(VENV)/.with-$(subst $(space),$(comma),$(strip $(1) $(EXTRAS)))

.PHONY: demo test lint types aot bench clean
.NOTPARALLEL:

demo: $(call with,demo)
	$(bin)/python examples/train_lm.py

test: $(call with,test)
	$(bin)/python -m pytest $(PYTEST_ARGS)

lint: $(call with,lint)
	$(bin)/ruff format --check
	$(bin)/ruff check
	$(bin)/clang-format --dry-run -Werror $$(git ls-files 'ffi/*.cc' 'ffi/*.h' 'ffi/*.cuh' 'tests/*.cc' 'tests/*.h' 'tests/*.cuh')

types: $(call with,lint test bench ecosystem)
	$(bin)/pyright --pythonpath $(bin)/python

aot: $(call with,test aot)
	JAX_PLATFORMS=cpu $(bin)/python -m tests.aot.compile --target=h200

bench: $(call with,bench cuda13)
	$(bin)/python -m benchmarks.run

clean:
	rm -rf .venv build *.egg-info

$(VENV)/.with-%: $(VENV)/.made
	$(bin)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

# A Python counts if it runs (a pyenv name may not), is 3.12 or newer and can make environments.
# Only a folder that is an environment already is ever emptied.
$(VENV)/.made: pyproject.toml
	@python=; \
	fits='import sys; assert sys.version_info >= (3, 12); import ensurepip, venv'; \
	for name in $(or $(PYTHON),python3.12 python3.13 python3.14 python3 python); do \
	  for path in $$(IFS=:; for folder in $$PATH; do echo "$$folder/$$name"; done) "$$name"; do \
	    if "$$path" -c "$$fits" >/dev/null 2>&1; then python=$$path; break 2; fi; \
	  done; \
	done; \
	if [ -z "$$python" ]; then \
	  echo 'jaxgemm needs Python 3.12 or newer with venv and pip, and none was found.' >&2; \
	  echo 'Install one: "apt install python3.12-venv" (Debian, Ubuntu), "dnf install python3.12"' >&2; \
	  echo '(Fedora, RHEL), "brew install python@3.12" (macOS) or "pyenv install 3.12"; then run' >&2; \
	  echo 'make again, or name it: make PYTHON=/path/to/python3.12 ...' >&2; \
	  exit 1; \
	fi; \
	if [ -e $(VENV) ] && [ ! -e $(VENV)/pyvenv.cfg ]; then \
	  echo '$(VENV) exists and is not a virtual environment; choose another VENV=' >&2; exit 1; \
	fi; \
	echo "$(VENV): made with $$("$$python" --version) from $$python"; \
	"$$python" -m venv --clear $(VENV)
	@touch $@
