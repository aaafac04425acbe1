#!/bin/bash
# Study small: 8 tasks for 16 runs. Written by mpifl submit,
# which also makes the folder of the logs: without it the batch system ends the job, and there is no log.
# flux: --job-name=small
# flux: --nodes=1
# flux: --nslots=1
# flux: --cores-per-slot=1
# flux: --time-limit=150m
# flux: --signal=USR1@120s
# flux: --output=/project/out/small/logs/{{name}}-{{id}}.log
# flux: --cwd=/project
# flux: --queue=long
# flux: --bank=physics
# flux: --gpus-per-slot=4
set -eo pipefail
:
set -u  # module and conda use variables that are not set
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

task=${MPIFL_TASK:-0}  # mpifl submit submits this script once for each task
restarts=0
pass_on() {
    kill -USR1 "$run" 2> /dev/null || true
    for id in $(flux jobs --no-header --format='{id}'); do flux job kill --signal=USR1 "$id" || true; done
}
requeue() { echo "Flux requeues no jobs: submit again to continue" >&2; }
preempted() { false; }  # Flux preempts no jobs by itself

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
if [ $code = 143 ] && { [ $warned = yes ] || preempted; }; then requeue; fi
exit $code
