${launch}
# Shortly before the time limit, and when the job is preempted, the runs save checkpoints and end with code 143; the task is
# then requeued. The launcher gets USR1 in both cases: it forwards USR1 to its ranks, but after TERM it soon kills them.
run="" warned=no
trap 'warned=yes; pass_on' USR1
trap pass_on TERM
${start} &
run=$$!
while kill -0 "$$run" 2> /dev/null; do wait "$$run" || true; done
code=0
wait "$$run" || code=$$?
if preempted; then code=143; fi  # preemption also ends mpirun's daemons, after which mpirun returns 0
if [ $$code = 138 ]; then code=143; fi  # USR1 came while Python started or ended, when it has no signal handlers
if [ $$code = 143 ] && { [ $$warned = yes ] || preempted; }; then
    if [ "$$restarts" -lt ${requeues} ]; then
        requeue
    else
        echo "put back into the queue ${requeues} times (site.requeues): submit again to continue" >&2
    fi
fi
exit $$code
