#!/bin/bash
# Job ${name} on ${nodes} nodes with ${ranks} ranks each. Written by mpifl submit.
#SBATCH --job-name=${name}
#SBATCH --nodes=${nodes}
#SBATCH --ntasks-per-node=${ranks}
#SBATCH --cpus-per-task=1
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
export SLURM_EXPORT_ENV=ALL  # the ranks see this environment, also after sbatch --export=NONE

# When SLURM starts this job again, the run continues from its checkpoint, or begins anew where it has none.
command=(${run})
if [ "$${SLURM_RESTART_COUNT:-0}" != 0 ]; then
    if ls ${checkpoints}/*.json > /dev/null 2>&1; then command=(${resume}); else command+=(overwrite=true); fi
fi

# Before the time limit the run saves a checkpoint and ends with code 143; the job is then put into the queue again.
# mpirun kills its ranks soon after a TERM and passes USR1 on, so a TERM is passed on as USR1.
warned=no
trap 'warned=yes; kill -USR1 "$$run" 2> /dev/null || true' USR1
trap 'kill -USR1 "$$run" 2> /dev/null || true' TERM
${launch} "$${command[@]}" &
run=$$!
while kill -0 "$$run" 2> /dev/null; do wait "$$run" || true; done
code=0
wait "$$run" || code=$$?
if [ $$warned = yes ] && [ $$code = 143 ]; then scontrol requeue "$$SLURM_JOB_ID"; fi
exit $$code
