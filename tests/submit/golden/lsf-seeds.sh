#!/bin/bash
# Job base on 2 nodes with 4 ranks each. Written by mpifl submit,
# which also makes the folder of the logs: without it the batch system ends the job, and there is no log.
#BSUB -J "base[1-4]%4"
#BSUB -n 8
#BSUB -R "span[ptile=4]"
#BSUB -W 150
#BSUB -wa USR1
#BSUB -wt 2
#BSUB -r
#BSUB -Q 143
#BSUB -o /project/results/base-%J-%I.log
#BSUB -cwd /project
#BSUB -q long
#BSUB -P physics
#BSUB -gpu "num=2"
set -eo pipefail
:
set -u  # module and conda use variables that are not set
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

task=$((LSB_JOBINDEX > 0 ? LSB_JOBINDEX - 1 : 0))
restarts=$([ "${LSB_RESTART:-N}" = Y ] && echo 1 || echo 0)
pass_on() { kill -USR1 "$run" 2> /dev/null || true; }
requeue() { :; }  # LSF does so for the exit code 143 (-Q)
preempted() { false; }  # LSF requeues such jobs itself

seeds=(0 1 2 7)
seed=${seeds[$task]}
command=(apptainer exec --nv docker://example.org/mpifl python -m mpifl run /project/base.yaml seed="$seed" name=base-seed-"$seed" output=/project/results/base-seed-"$seed".h5)
# When this run was started before, it continues from its checkpoint, or begins anew where it has none.
if [ "$restarts" != 0 ]; then
    if ls /project/results/base-seed-"$seed".ckpt/*.json > /dev/null 2>&1; then
        command=(apptainer exec --nv docker://example.org/mpifl python -m mpifl resume /project/results/base-seed-"$seed".h5 --trust)
    else
        command+=(overwrite=true)
    fi
fi

launch=(mpirun --hostfile "$LSB_DJOB_HOSTFILE" --map-by ppr:4:node --bind-to none)
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
