#!/bin/bash
# A real SLURM on 127.0.0.1 that poses as a cluster of GH200 nodes:  cluster.sh start FOLDER | stop FOLDER | left FOLDER
#
# Two nodes run (nid001, nid002: 288 cores and four GPUs each, as in Alps' partition `normal`), 62 more and one of eight
# H100 exist for the scheduler only. Everything lies in FOLDER, an absolute path that every user may enter; nothing
# listens beyond 127.0.0.1. Needs root and Debian's or Ubuntu's packages, which `start` installs if they are absent.
# Not proven by it: what a kernel enforces (cgroups, core binding, GPU isolation), accounts, and any other SLURM release.
set -euo pipefail

readonly CONTROLLER_PORT=${RPEGC_SLURM_PORT:-16817}
readonly FIRST_NODE_PORT=$((CONTROLLER_PORT + 184))
readonly READY_LIMIT_S=40
readonly STOP_LIMIT_S=15

fail() {
    echo "cluster.sh: $*" >&2
    exit 1
}

# wait_until SECONDS COMMAND...: polls, so that no daemon is trusted to be quick.
wait_until() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.1
    done
}

install_packages() {
    local program missing=
    for program in munged slurmctld slurmd sbatch; do
        command -v "$program" >/dev/null || missing=$program
    done
    [[ -n $missing ]] || return 0
    command -v apt-get >/dev/null || fail "$missing is not installed, and there is no apt-get to install it with"
    export DEBIAN_FRONTEND=noninteractive
    local packages=(slurmctld slurmd slurm-client munge)
    timeout 300 apt-get install -y --no-install-recommends "${packages[@]}" >"$folder/apt.log" 2>&1 ||
        { timeout 120 apt-get update && timeout 300 apt-get install -y --no-install-recommends "${packages[@]}"; } \
            >>"$folder/apt.log" 2>&1 || fail "apt-get could not install ${packages[*]}: $(tail -n 5 "$folder/apt.log")"
}

write_configuration() {
    local host node="Sockets=4 CoresPerSocket=72 ThreadsPerCore=1 RealMemory=870000" index
    host=$(hostname -s)
    local first=$FIRST_NODE_PORT
    cat >"$folder/slurm.conf" <<CONF
ClusterName=fakealps
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$CONTROLLER_PORT
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CryptoType=crypto/munge
# Every listener on 127.0.0.1 only.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdSpoolDir=$folder/spool/%n
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmdLogFile=$folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# A host of two cores may pose as one of 288.
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu
PrologFlags=Alloc
# A job beyond its partition's limits is refused when it is submitted, not left waiting.
EnforcePartLimits=ALL
KillWait=5
SchedulerParameters=sched_interval=2,bf_interval=2
# Job ids that no Ray folder of another run bears: the emitted script names its folder after the job.
FirstJobId=$((100000 + $$ % 800000))
NodeName=nid[001-002] NodeHostname=$host NodeAddr=127.0.0.1 Port=$first-$((first + 1)) $node Gres=gpu:gh200:4 State=UNKNOWN
# Nodes that no daemon runs for: the scheduler counts them only if it believes that it could power them up.
NodeName=nid[003-064] NodeHostname=$host NodeAddr=127.0.0.1 Port=$((first + 2))-$((first + 63)) $node Gres=gpu:gh200:4 State=CLOUD
NodeName=dgx001 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((first + 64)) Sockets=2 CoresPerSocket=56 ThreadsPerCore=2 RealMemory=2000000 Gres=gpu:h100:8 State=CLOUD
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=-1
PartitionName=normal Nodes=nid[001-064] Default=YES MaxTime=24:00:00 State=UP OverSubscribe=EXCLUSIVE
PartitionName=h100 Nodes=dgx001 MaxTime=24:00:00 State=UP OverSubscribe=EXCLUSIVE
CONF
    cat >"$folder/gres.conf" <<CONF
AutoDetect=off
NodeName=nid[001-064] Name=gpu Type=gh200 File=$folder/nvidia[0-3]
NodeName=dgx001 Name=gpu Type=h100 File=$folder/nvidia[0-7]
CONF
    # SLURM wants device files: copies of /dev/null.
    for index in 0 1 2 3 4 5 6 7; do
        mknod "$folder/nvidia$index" c 1 3
    done
    mkdir -p "$folder/state" "$folder/spool/nid001" "$folder/spool/nid002"
    dd if=/dev/urandom of="$folder/munge.key" bs=128 count=1 status=none
    chmod 400 "$folder/munge.key"
}

idle() {
    [[ $(timeout 5 sinfo --noheader --nodes=nid001,nid002 --format=%T 2>/dev/null | sort -u) == idle ]]
}

start() {
    [[ $EUID -eq 0 ]] || fail "needs root: slurmd starts its job steps as other users"
    mkdir -p "$folder"
    install_packages
    ! (: >"/dev/tcp/127.0.0.1/$CONTROLLER_PORT") 2>/dev/null || fail "port $CONTROLLER_PORT is taken; set RPEGC_SLURM_PORT"
    write_configuration
    trap stop EXIT
    munged --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"
    wait_until "$READY_LIMIT_S" test -S "$folder/munge.socket" || fail "munged does not answer"
    slurmctld -f "$SLURM_CONF" -c
    slurmd -f "$SLURM_CONF" -N nid001
    slurmd -f "$SLURM_CONF" -N nid002
    wait_until "$READY_LIMIT_S" idle || fail "nodes are not idle after $READY_LIMIT_S s: $(sinfo --long --Node 2>&1)"
    trap - EXIT
}

# The processes of this cluster: all inherit its SLURM_CONF.
left() {
    local file
    for file in /proc/[0-9]*/environ; do
        if grep -qsz "^SLURM_CONF=$SLURM_CONF\$" "$file"; then
            file=${file#/proc/}
            # This script and what it runs inherit it too.
            [[ ${file%/environ} == "$$" || $(ps -o ppid= -p "${file%/environ}" | tr -d ' ') == "$$" ]] || echo "${file%/environ}"
        fi
    done
}

none_left() {
    [[ -z $(left) ]]
}

no_jobs() {
    [[ -z $(timeout 5 squeue --noheader 2>/dev/null) ]]
}

end_of() {
    local pid
    for pid in "$folder"/$1.pid; do
        [[ -s $pid ]] && kill "$(<"$pid")" 2>/dev/null || true
    done
}

stop() {
    local status=$? pid
    trap - EXIT
    timeout 5 scancel --user="$(id -un)" 2>/dev/null || true
    wait_until "$STOP_LIMIT_S" no_jobs || true
    end_of 'slurmd-*'
    end_of slurmctld
    end_of munged
    if ! wait_until "$STOP_LIMIT_S" none_left; then
        for pid in $(left); do
            kill -KILL "$pid" 2>/dev/null || true
        done
        wait_until "$STOP_LIMIT_S" none_left || fail "processes are left: $(left | tr '\n' ' ')"
    fi
    return "$status"
}

[[ $# -eq 2 && $2 == /* ]] || fail "usage: cluster.sh start|stop|left FOLDER (an absolute path)"
readonly folder=$2
export SLURM_CONF=$folder/slurm.conf PATH=$PATH:/usr/sbin:/sbin
case $1 in
    start) start ;;
    stop) stop ;;
    left) left ;;
    *) fail "unknown part $1" ;;
esac
