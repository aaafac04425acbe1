-- Module file of mpifl for Lmod: copy it to MODULEPATH/mpifl/VERSION.lua, and change what is marked CHANGE.
-- The installation is a virtual environment: python3 -m venv /apps/mpifl/VERSION, then pip install in it.
local version = myModuleVersion()
local prefix = pathJoin("/apps/mpifl", version) -- CHANGE

help([[mpifl: asynchronous and synchronous federated optimisation over MPI.
Start a run with the launcher of the MPI module:  srun mpifl run JOB.yaml  or  mpirun -n RANKS mpifl run JOB.yaml
Test the installation:  mpirun -n 4 mpifl selftest]])
whatis("Name: mpifl")
whatis("Version: " .. version)
whatis("Description: federated optimisation over MPI")

depends_on("openmpi/5.0") -- CHANGE: the MPI that mpi4py was built for, or that it is to load
-- depends_on("python/3.11") -- CHANGE, where the environment was made with a module's Python

prepend_path("PATH", pathJoin(prefix, "bin"))
-- setenv("MPI4PY_LIBMPI", "/apps/openmpi/5.0/lib/libmpi.so") -- CHANGE, where mpi4py is pip's wheel
setenv("MPIFL_DATA", "/apps/data/mpifl") -- CHANGE: data sets that all users may read
setenv("OMP_NUM_THREADS", "1") -- the parallelism is in the ranks
