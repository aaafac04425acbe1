#!/bin/bash
# Job base on 2 nodes with 4 ranks each. Written by mpifl submit,
# which also makes the folder of the logs: without it the batch system ends the job, and there is no log.
#PBS -N base
#PBS -l select=2:ncpus=4:mpiprocs=4
#PBS -l walltime=02:30:00
#PBS -r y
#PBS -j oe
#PBS -o /project/results/
#PBS -J 0-3%4
#PBS -q long
#PBS -A physics
set -eo pipefail
cd /project
module load openmpi/5
set -u  # module and conda use variables that are not set
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

task=${PBS_ARRAY_INDEX:-0}
restarts=$(qstat -f "$PBS_JOBID" 2> /dev/null | awk '$1 == "run_count" { print $3 - 1 }' || true)
restarts=${restarts:-0}
pass_on() { kill -USR1 "$run" 2> /dev/null || true; }
requeue() { qrerun "$PBS_JOBID" || echo "this site requeues no jobs: submit again to continue" >&2; }
preempted() { false; }  # PBS requeues such jobs itself

# PBS gives no warning before the time limit.
(sleep 8880; kill -USR1 $$) &
timer=$!
trap 'kill "$timer" 2> /dev/null || true' EXIT

seeds=(0 1 2 7)
seed=${seeds[$task]}
command=(python -m mpifl run /project/base.yaml seed="$seed" name=base-seed-"$seed" output=/project/results/base-seed-"$seed".h5)
# When this run was started before, it continues from its checkpoint, or begins anew where it has none.
if [ "$restarts" != 0 ]; then
    if ls /project/results/base-seed-"$seed".ckpt/*.json > /dev/null 2>&1; then
        command=(python -m mpifl resume /project/results/base-seed-"$seed".h5 --trust)
    else
        command+=(overwrite=true)
    fi
fi

launch=(mpirun --hostfile "$PBS_NODEFILE" --map-by ppr:4:node --bind-to none)
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
if [ $code = 143 ] && { [ $warned = yes ] || preempted; }; then requeue; fi
exit $code
