#!/bin/bash
# ${title}. Written by mpifl submit,
# which also makes the folder of the logs: without it the batch system ends the job, and there is no log.
#SBATCH --job-name=${name}
#SBATCH --nodes=${nodes}
#SBATCH --ntasks-per-node=${ranks}
#SBATCH --cpus-per-task=${cores}
#SBATCH --time=${time}
#SBATCH --signal=B:USR1@${warning}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=${log}
#SBATCH --chdir=${folder_now}
${options}
set -eo pipefail
${setup}
set -u  # module and conda use variables that are not set
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
export SLURM_EXPORT_ENV=ALL  # the ranks see this environment, also after sbatch --export=NONE

task=$${SLURM_ARRAY_TASK_ID:-0}
restarts=$${SLURM_RESTART_COUNT:-0}
pass_on() { kill -USR1 "$$run" 2> /dev/null || true; }
job="$${SLURM_ARRAY_JOB_ID:-$$SLURM_JOB_ID}$${SLURM_ARRAY_TASK_ID:+_$$SLURM_ARRAY_TASK_ID}"
requeue() { scontrol requeue "$$job"; }
preempted() { scontrol show job "$$job" | grep -q "PreemptTime=[0-9]"; }
