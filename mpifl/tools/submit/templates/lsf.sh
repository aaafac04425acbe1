#!/bin/bash
# ${title}. Written by mpifl submit,
# which also makes the folder of the logs: without it the batch system ends the job, and there is no log.
#BSUB -J ${job_array}
#BSUB -n ${slots}
#BSUB -R "span[ptile=${slots_per_node}]"
#BSUB -W ${minutes}
#BSUB -wa USR1
#BSUB -wt ${warning_minutes}
#BSUB -r
#BSUB -Q 143
#BSUB -o ${log}
#BSUB -cwd ${folder_now}
${options}
set -eo pipefail
${setup}
set -u  # module and conda use variables that are not set
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

task=$$((LSB_JOBINDEX > 0 ? LSB_JOBINDEX - 1 : 0))
restarts=$$([ "$${LSB_RESTART:-N}" = Y ] && echo 1 || echo 0)
pass_on() { kill -USR1 "$$run" 2> /dev/null || true; }
requeue() { :; }  # LSF does so for the exit code 143 (-Q)
preempted() { false; }  # LSF requeues such jobs itself
