#!/bin/bash
# Study small: 8 tasks for 16 runs. Written by mpifl submit,
# which also makes the folder of the logs: without it the batch system ends the job, and there is no log.
#PBS -N small
#PBS -l select=2:ncpus=4:mpiprocs=4
#PBS -l walltime=02:30:00
#PBS -r y
#PBS -j oe
#PBS -o /project/out/small/logs/
#PBS -J 0-7%5
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

# Task $task of 8 has every 8-th run of the study. Completed runs are skipped; interrupted ones continue.
command=(python -m mpifl sweep /project/study.yaml ranks=3 output=/project/out/small --part "$task/8")

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
