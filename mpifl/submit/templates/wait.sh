
# Before the time limit, and when the job is preempted, its runs save checkpoints and end with code 143; after the time
# limit's warning the task is then put into the queue again. A TERM is passed on as USR1, which launchers pass on to their
# ranks: after a TERM they kill them soon.
warned=no
trap 'warned=yes; pass_on' USR1
trap pass_on TERM
${launch}"$${command[@]}" &
run=$$!
while kill -0 "$$run" 2> /dev/null; do wait "$$run" || true; done
code=0
wait "$$run" || code=$$?
if [ $$warned = yes ] && [ $$code = 143 ]; then requeue; fi
exit $$code
