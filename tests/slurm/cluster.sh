#!/bin/bash
# A SLURM cluster of two nodes, n1 and n2, on this host: munge, slurmctld and two slurmd, without systemd.
#
#   cluster.sh up DIR      start it with everything under DIR; prints the line that points SLURM's commands at it
#   cluster.sh down DIR    end its jobs and its daemons; DIR (with the logs) is left
#
# Needs Debian's or Ubuntu's packages:
#   apt-get install --no-install-recommends slurmctld slurmd slurm-client munge
# and, for srun --mpi=pmix, libpmix-dev (SLURM opens libpmix.so, which only that package has).
# Exit codes: 0 done, 1 it did not come up or go down in time (the logs' ends are on stderr), 2 bad command line,
# 77 packages missing.
set -euo pipefail

DEADLINE=${MPIFL_SLURM_DEADLINE:-60}    # seconds for the nodes to be idle
CPUS=${MPIFL_SLURM_CPUS:-4}             # what each node claims to have, whatever the host has
DAEMONS="slurmd-n1 slurmd-n2 slurmctld munged"
PATH=$PATH:/usr/sbin:/sbin

say() { echo "cluster.sh: $*" >&2; }

free_ports() {    # three ports in a row that nobody listens on, below the ephemeral range
    local first port taken
    for _ in $(seq 50); do
        first=$((20000 + RANDOM % 10000)) taken=no
        for port in $first $((first + 1)) $((first + 2)); do
            if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then taken=yes; fi
        done
        if [ $taken = no ]; then echo $first; return; fi
    done
    say "no three free ports"; return 1
}

configure() {
    local host user port
    host=$(hostname -s) user=$(id -un) port=$(free_ports)
    mkdir -p "$DIR/state" "$DIR/n1" "$DIR/n2"
    (umask 077 && head -c 1024 /dev/urandom > "$DIR/munge.key")
    cat > "$DIR/slurm.conf" <<CONF
ClusterName=mpifl
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
# a job that is requeued waits until its credential has expired: 120 s, unless it is said here
AuthInfo=socket=$DIR/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/%n
# srun --mpi=pmix keeps a directory of the step's number there: the two nodes must not share it
TmpFS=$DIR/%n
SlurmctldPidFile=$DIR/slurmctld.pid
SlurmdPidFile=$DIR/slurmd-%n.pid
SlurmctldLogFile=$DIR/slurmctld.log
SlurmdLogFile=$DIR/slurmd-%n.log
# the host's real cores are not asked for: each node may claim more
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobCompType=jobcomp/filetxt
JobCompLoc=$DIR/jobs.txt
EnforcePartLimits=ALL
ReturnToService=2
KillWait=5
SlurmdTimeout=60
SchedulerParameters=sched_min_interval=100000
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=$CPUS RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=$CPUS RealMemory=4000 State=UNKNOWN
# jobs of the partition urgent take the nodes of the others, which hear of it 60 s before they are requeued
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=test Nodes=n1,n2 Default=YES MaxTime=1-0 PriorityTier=1 GraceTime=60 State=UP
PartitionName=urgent Nodes=n1,n2 MaxTime=1-0 PriorityTier=2 State=UP
CONF
}

idle() { [ "$(sinfo -h -N -p test -o %t 2>/dev/null | grep -cx idle)" = 2 ]; }

up() {
    local program log missing=""
    for program in munged slurmctld slurmd sbatch sinfo; do
        command -v $program > /dev/null || missing="$missing $program"
    done
    if [ -n "$missing" ]; then
        say "missing:$missing (apt-get install --no-install-recommends slurmctld slurmd slurm-client munge)"
        exit 77
    fi
    mkdir -p "$DIR"
    if [ -e "$DIR/slurm.conf" ]; then say "$DIR has a cluster already: down first, and another DIR"; exit 2; fi
    configure
    # --force: munged would refuse a socket in a directory that others cannot enter, such as a test's own
    munged --force --key-file="$DIR/munge.key" --socket="$DIR/munge.socket" --pid-file="$DIR/munged.pid" \
        --log-file="$DIR/munged.log" --seed-file="$DIR/munge.seed" --num-threads=2 2> "$DIR/munged.err"
    slurmctld -c
    slurmd -N n1 -c
    slurmd -N n2 -c
    for _ in $(seq "$DEADLINE"); do
        if idle; then echo "export SLURM_CONF=$DIR/slurm.conf"; return; fi
        sleep 1
    done
    say "the nodes were not idle after $DEADLINE s"
    for log in "$DIR"/*.log; do echo "$log:"; tail -n 15 "$log"; done >&2
    down || true
    exit 1
}

alive() {    # PID NAME: that daemon is there; not a zombie, not another program that has its number now
    [ "$(cat "/proc/$1/comm" 2>/dev/null)" = "$2" ] && ! grep -qs "^State:.Z" "/proc/$1/status"
}

down() {
    local name pid signal left
    local -A names=()
    for name in $DAEMONS; do    # read now: a daemon takes its pid file away before it has ended
        pid=$(cat "$DIR/$name.pid" 2>/dev/null) || continue
        if alive "$pid" "${name%-n?}"; then names[$pid]=${name%-n?}; fi
    done
    if [[ " ${names[*]-} " = *" slurmctld "* ]]; then
        scancel --state=PENDING --state=RUNNING --user="$(id -un)" 2>/dev/null || true
        for _ in $(seq 15); do    # slurmd leaves its jobs running when it ends, so they go first
            [ -n "$(squeue -h 2>/dev/null)" ] || break
            sleep 1
        done
    fi
    for signal in TERM KILL; do
        for pid in "${!names[@]}"; do kill -$signal "$pid" 2>/dev/null || true; done
        for _ in $(seq 50); do
            left=""
            for pid in "${!names[@]}"; do
                if alive "$pid" "${names[$pid]}"; then left="$left $pid(${names[$pid]})"; else unset "names[$pid]"; fi
            done
            if [ -z "$left" ]; then return; fi
            sleep 0.2
        done
    done
    say "still there:$left"
    return 1
}

if [ $# != 2 ] || { [ "$1" != up ] && [ "$1" != down ]; }; then say "usage: cluster.sh up|down DIR"; exit 2; fi
DIR=$(realpath -m "$2")
export SLURM_CONF=$DIR/slurm.conf
"$1"
