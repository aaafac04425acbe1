#!/bin/bash
# Study small: 8 tasks for 16 runs. Written by mpifl submit,
# which also makes the folder of the logs: without it the batch system ends the job, and there is no log.
#SBATCH --job-name=small
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --time=02:30:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/project/out/small/logs/%x-%A-%a.log
#SBATCH --chdir=/project
#SBATCH --array=0-7%5
#SBATCH --partition=long
#SBATCH --account=physics
#SBATCH --mem-per-cpu=1G
set -eo pipefail
module load openmpi/5
set -u  # module and conda use variables that are not set
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
export SLURM_EXPORT_ENV=ALL  # the ranks see this environment, also after sbatch --export=NONE

task=${SLURM_ARRAY_TASK_ID:-0}
restarts=${SLURM_RESTART_COUNT:-0}
pass_on() { kill -USR1 "$run" 2> /dev/null || true; }
job="${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
requeue() { scontrol requeue "$job"; }
preempted() { scontrol show job "$job" | grep -q "PreemptTime=[0-9]"; }

# Task $task of 8 has every 8-th run of the study. Completed runs are skipped; interrupted ones continue.
command=(python -m mpifl sweep /project/study.yaml output=/project/out/small --processes 1 --part "$task/8")

# Shortly before the time limit, and when the job is preempted, the runs save checkpoints and end with code 143; the task is
# then requeued. The launcher gets USR1 in both cases: it forwards USR1 to its ranks, but after TERM it soon kills them.
run="" warned=no
trap 'warned=yes; pass_on' USR1
trap pass_on TERM
"${command[@]}" &
run=$!
while kill -0 "$run" 2> /dev/null; do wait "$run" || true; done
code=0
wait "$run" || code=$?
if preempted; then code=143; fi  # preemption also ends mpirun's daemons, after which mpirun returns 0
if [ $code = 138 ]; then code=143; fi  # USR1 came while Python started or ended, when it has no signal handlers
if [ $code = 143 ] && { [ $warned = yes ] || preempted; }; then
    if [ "$restarts" -lt 20 ]; then
        requeue
    else
        echo "put back into the queue 20 times (site.requeues): submit again to continue" >&2
    fi
fi
exit $code
