# Copyright Spack Project Developers. See COPYRIGHT file for details.
#
# SPDX-License-Identifier: (Apache-2.0 OR MIT)
import os

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyMpifl(PythonPackage):
    """Asynchronous and synchronous federated optimisation over MPI."""

    # The sdist is taken from the folder in which spack is started: python -m build --sdist.
    url = f"file://{os.getcwd()}/mpifl-0.1.0.tar.gz"
    manual_download = True

    license("Apache-2.0")

    version("0.1.0")

    variant("torch", default=False, description="Jobs with a torch model")
    variant("export", default=False, description="Parquet, safetensors and TensorBoard files")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")

    depends_on("py-h5py@3.10:", type=("build", "run"))
    depends_on("py-matplotlib@3.8:", type=("build", "run"))
    depends_on("py-mpi4py@4.1:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-pandas@2.1:", type=("build", "run"))
    depends_on("py-pooch@1.8:", type=("build", "run"))
    depends_on("py-pyyaml@6:", type=("build", "run"))
    depends_on("py-scikit-learn@1.3:", type=("build", "run"))
    depends_on("py-scipy@1.15:", type=("build", "run"))
    depends_on("py-tabulate@0.9:", type=("build", "run"))
    depends_on("py-threadpoolctl@3.1:", type=("build", "run"))
    depends_on("py-tqdm@4.66:", type=("build", "run"))

    with when("+torch"):
        depends_on("py-greenlet@3:", type=("build", "run"))
        depends_on("py-torch@2.4:", type=("build", "run"))

    with when("+export"):
        depends_on("py-pyarrow@15: +parquet", type=("build", "run"))
        depends_on("py-safetensors@0.4:", type=("build", "run"))
        depends_on("py-tensorboard@2.16:", type=("build", "run"))

    def test_selftest(self):
        """MPI, files, the virtual clock and torch work in one process"""
        mpifl = which(self.prefix.bin.mpifl)
        mpifl("selftest")
