#!/bin/bash
# ${title}. Written by mpifl submit,
# which also makes the folder of the logs: without it the batch system ends the job, and there is no log.
#PBS -N ${name}
#PBS -l select=${nodes}:ncpus=${cores_per_node}:mpiprocs=${ranks}${gpus}
#PBS -l walltime=${time}
#PBS -r y
#PBS -j oe
#PBS -o ${log}
${options}
set -eo pipefail
cd ${folder_now}
${setup}
set -u  # module and conda use variables that are not set
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

task=$${PBS_ARRAY_INDEX:-0}
restarts=$$(qstat -f "$$PBS_JOBID" 2> /dev/null | awk '$$1 == "run_count" { print $$3 - 1 }' || true)
restarts=$${restarts:-0}
pass_on() { kill -USR1 "$$run" 2> /dev/null || true; }
requeue() { qrerun "$$PBS_JOBID" || echo "this site requeues no jobs: submit again to continue" >&2; }
preempted() { false; }  # PBS requeues such jobs itself

# PBS gives no warning before the time limit.
(sleep ${lead}; kill -USR1 $$$$) &
timer=$$!
trap 'kill "$$timer" 2> /dev/null || true' EXIT
