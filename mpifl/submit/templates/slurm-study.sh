#!/bin/bash
# Study ${name}: ${tasks} tasks, each of which runs every ${tasks}-th run. Written by mpifl submit.
#SBATCH --job-name=${name}
#SBATCH --array=0-${last}%${at_once}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=${processes}
#SBATCH --time=${time}
#SBATCH --signal=B:USR1@${warning}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=${log}
#SBATCH --chdir=${folder_now}
${options}
set -euo pipefail
${setup}
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

# Before the time limit the runs save checkpoints and end with code 143; the task is then put into the queue again.
warned=no
trap 'warned=yes; kill -USR1 "$$sweep" 2> /dev/null || true' USR1
trap 'kill -TERM "$$sweep" 2> /dev/null || true' TERM
${command} "$$SLURM_ARRAY_TASK_ID/${tasks}" &
sweep=$$!
while kill -0 "$$sweep" 2> /dev/null; do wait "$$sweep" || true; done
code=0
wait "$$sweep" || code=$$?
if [ $$warned = yes ] && [ $$code = 143 ]; then
    scontrol requeue "$${SLURM_ARRAY_JOB_ID}_$$SLURM_ARRAY_TASK_ID"
fi
exit $$code
