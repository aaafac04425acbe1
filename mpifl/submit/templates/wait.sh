${launch}
# Before the time limit, and when the job is preempted, its runs save checkpoints and end with code 143, and the task is put
# into the queue again. A TERM is passed on as USR1, which launchers pass on to their ranks: after a TERM they kill them soon.
run="" warned=no
trap 'warned=yes; pass_on' USR1
trap pass_on TERM
${start} &
run=$$!
while kill -0 "$$run" 2> /dev/null; do wait "$$run" || true; done
code=0
wait "$$run" || code=$$?
if preempted; then code=143; fi  # it ends mpirun's daemons too, and mpirun then says that all was well
if [ $$code = 143 ] && { [ $$warned = yes ] || preempted; }; then requeue; fi
exit $$code
