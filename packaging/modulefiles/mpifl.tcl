#%Module
# Module file of mpifl for Environment Modules: copy it to MODULEPATH/mpifl/VERSION, and change what is marked CHANGE.
# The installation is a virtual environment: python3 -m venv /apps/mpifl/VERSION, then pip install in it.
set version [file tail [module-info name]]
set prefix /apps/mpifl/$version ;# CHANGE

proc ModulesHelp {} {
    puts stderr "mpifl: asynchronous and synchronous federated optimisation over MPI."
    puts stderr "Start a run with the launcher of the MPI module:  srun mpifl run JOB.yaml  or  mpirun -n RANKS mpifl run JOB.yaml"
    puts stderr "Test the installation:  mpirun -n 4 mpifl selftest"
}
module-whatis "Name: mpifl"
module-whatis "Version: $version"
module-whatis "Description: federated optimisation over MPI"

module load openmpi/5.0 ;# CHANGE: the MPI that mpi4py was built for, or that it is to load
# module load python/3.11 ;# CHANGE, where the environment was made with a module's Python

prepend-path PATH $prefix/bin
# setenv MPI4PY_LIBMPI /apps/openmpi/5.0/lib/libmpi.so ;# CHANGE, where mpi4py is pip's wheel
setenv MPIFL_DATA /apps/data/mpifl ;# CHANGE: data sets that all users may read
setenv OMP_NUM_THREADS 1 ;# the parallelism is in the ranks
