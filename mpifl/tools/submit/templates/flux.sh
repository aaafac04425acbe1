#!/bin/bash
# ${title}. Written by mpifl submit,
# which also makes the folder of the logs: without it the batch system ends the job, and there is no log.
# flux: --job-name=${name}
# flux: --nodes=${nodes}
# flux: --nslots=${nodes}
# flux: --cores-per-slot=${cores_per_node}
# flux: --time-limit=${minutes}m
# flux: --signal=USR1@${warning}s
# flux: --output=${log}
# flux: --cwd=${folder_now}
${options}
set -eo pipefail
${setup}
set -u  # module and conda use variables that are not set
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

task=$${MPIFL_TASK:-0}  # mpifl submit submits this script once for each task
restarts=0
pass_on() {
    kill -USR1 "$$run" 2> /dev/null || true
    for id in $$(flux jobs --no-header --format='{id}'); do flux job kill --signal=USR1 "$$id" || true; done
}
requeue() { echo "Flux requeues no jobs: submit again to continue" >&2; }
preempted() { false; }  # Flux preempts no jobs by itself
