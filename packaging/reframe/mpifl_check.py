"""Acceptance test of an installed mpifl, for ReFrame: the bits of the virtual clock, and updates a second.

    reframe -C SETTINGS.py -c packaging/reframe/mpifl_check.py -r --performance-report

SETTINGS.py is the centre's, or settings.py beside this file for one machine. Without -C, ReFrame has no MPI launcher:
one process is tested. Options, each with -S MpiflCheck.NAME=VALUE: modules=mpifl/VERSION; num_tasks=N and
num_tasks_per_node=N; folder=DIR, the folder of the parallel file system whose locks and files are tested; floor=N, the
least number of updates a second that passes.
"""

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import performance_function, run_after, run_before, sanity_function, variable


@rfm.simple_test
class MpiflCheck(rfm.RunOnlyRegressionTest):
    """Runs `mpifl selftest` on several ranks."""

    descr = "mpifl: MPI, HDF5, file locks, the virtual clock and the rate of updates"
    valid_systems = ["*"]  # noqa: RUF012 - as ReFrame declares it
    valid_prog_environs = ["*"]  # noqa: RUF012
    executable = "mpifl"
    num_tasks = 4
    time_limit = "5m"
    folder = variable(str, value=".")
    floor = variable(float, value=0.0)

    @run_after("setup")
    def find_launcher(self):
        """Whether there is one that starts several ranks."""
        self.launched = self.job.launcher.registered_name != "local"
        if not self.launched:
            self.job.num_tasks = self.num_tasks = 1

    @run_before("run")
    def set_options(self):
        """One thread a rank, as in mpifl's batch scripts."""
        self.executable_opts = ["selftest", "--folder", self.folder]
        self.env_vars["OMP_NUM_THREADS"] = "1"

    @run_before("performance")
    def set_reference(self):
        """A rate below `floor` fails; 0 lets every rate pass. One process sends no messages."""
        if not self.launched:
            del self.perf_variables["round_trips"]
        self.reference = {"*": {"updates": (self.floor, 0 if self.floor else None, None, "updates/s")}}

    @sanity_function
    def all_checks_pass(self):
        """The virtual clock has its bits in one process and on all ranks, and no check has failed."""
        found = [r"^virtual clock +ok .*\(digest [0-9a-f]{16}\)"]
        if self.launched:
            found += [r"^virtual clock, ranks +ok ", rf"^ranks +ok +{self.num_tasks} ranks of "]
        return sn.all(
            [sn.assert_not_found(r" FAILED ", self.stdout), *(sn.assert_found(each, self.stdout) for each in found)]
        )

    @performance_function("updates/s")
    def updates(self):
        """What the server consumes in real time, without delays; of one process, what that computes as well."""
        return self._number(r"^(?:updates, ranks|HDF5, SWMR) .* (?P<number>[\d,]+) updates a second", -1)

    @performance_function("1/s")
    def round_trips(self):
        """Messages of 7,850 numbers between ranks 0 and 1."""
        return self._number(r"^wire, d = 7,850 .* (?P<number>[\d,]+) round trips a second")

    def _number(self, pattern, item=0):
        return sn.extractsingle(pattern, self.stdout, "number", lambda text: float(text.replace(",", "")), item=item)
