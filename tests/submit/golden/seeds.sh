#!/bin/bash
# Job base on 2 nodes with 4 ranks each. Written by mpifl submit,
# which also makes the folder of the logs: without it the batch system ends the job, and there is no log.
#SBATCH --job-name=base
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=1
#SBATCH --time=02:30:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/project/results/%x-%A-%a.log
#SBATCH --chdir=/project
#SBATCH --array=0-3%4
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

seeds=(0 1 2 7)
seed=${seeds[$task]}
command=(python -m mpifl run /project/base.yaml seed="$seed" name=base-seed-"$seed" output=/project/results/base-seed-"$seed".h5)
# When this run was started before, it continues from its checkpoint, or begins anew where it has none.
if [ "$restarts" != 0 ]; then
    if ls /project/results/base-seed-"$seed".ckpt/*.json > /dev/null 2>&1; then
        command=(python -m mpifl resume /project/results/base-seed-"$seed".h5 --trust)
    fi
fi

# --bind-to none: a rank may use every core of its job; else all threads of rank 0 would share one.
launch=(mpirun --map-by ppr:4:node --bind-to none)
if ompi_info 2> /dev/null | grep -q "Fault Tolerance support: yes"; then
    launch+=(--with-ft ulfm)  # the run goes on without ranks that die
fi

# Shortly before the time limit, and when the job is preempted, the runs save checkpoints and end with code 143; the task is
# then requeued. The launcher gets USR1 in both cases: it forwards USR1 to its ranks, but after TERM it soon kills them.
run="" warned=no
trap 'warned=yes; pass_on' USR1
trap pass_on TERM
"${launch[@]}" "${command[@]}" &
run=$!
while kill -0 "$run" 2> /dev/null; do wait "$run" || true; done
code=0
wait "$run" || code=$?
if preempted; then code=143; fi  # preemption also ends mpirun's daemons, after which mpirun returns 0
if [ $code = 143 ] && { [ $warned = yes ] || preempted; }; then
    if [ "$restarts" -lt 20 ]; then
        requeue
    else
        echo "put back into the queue 20 times (site.requeues): submit again to continue" >&2
    fi
fi
exit $code
