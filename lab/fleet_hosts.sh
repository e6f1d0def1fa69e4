#!/bin/bash
# `microbench fleet run --ssh` and `--slurm` for real, on this machine alone, by hand:
#
#     apt-get install openssh-server slurm-wlm munge       # Debian, as root; the packages' own services are not used
#     pip install -e '.[fleet]' asyncssh dask-jobqueue     # into the environment whose Python is given here
#     lab/fleet_hosts.sh .venv/bin/python
#
# It starts an sshd with four addresses of its own, of which one has no microbench, and a Slurm with two nodes, checks
# what the command says, its exit code, and that no process is left, and stops them all. Every node is simulated.
set -u
python=$(realpath -s "${1:?which Python?}")
here=$(mktemp -d /tmp/fleet-hosts.XXXX)
export HOME=$here SLURM_CONF=$here/slurm.conf
unset PYTHONPATH
cd "$here" || exit
mkdir -p .ssh .config/dask state empty /run/sshd
failures=0

stop() {
    [ ! -f slurm.conf ] || scancel --user "$(id -un)"
    for file in ./*.pid; do kill "$(cat "$file")"; done
    sleep 2
    rm -rf "$here"
}
trap stop EXIT

left() { # processes of the Python that is tested, and jobs
    ps -eo args= | grep -F -- "$python " | grep -v grep
    [ ! -f slurm.conf ] || squeue --noheader
}

check() { # check EXIT_CODE WORDS SECONDS_TO_CTRL_C ARGUMENTS...: run, interrupt if asked to, and look at what is left
    local code=$1 words=$2 after=$3 ended; shift 3
    # env gives Ctrl-C back to what a script starts in the background
    env --default-signal=INT "$python" -m microbench fleet run launch_cost --device fake --store store "$@" >out 2>&1 &
    [ "$after" = 0 ] || { sleep "$after"; kill -INT $!; }
    wait $!
    ended=$?
    for _ in $(seq 20); do [ -z "$(left)" ] && break; sleep 0.5; done
    if [ $ended = "$code" ] && [[ $(<out) == *"$words"* ]] && [ -z "$(left)" ]; then
        echo "ok      $*: exit code $code${words:+, $words}"
    else
        echo "FAILED  $*: exit code $ended, not $code with \"$words\""; cat out; left
        failures=$((failures + 1))
    fi
}

# SSH: 127.0.0.2 to 127.0.0.4; on 127.0.0.5 the Python has an empty folder in the place of microbench
ssh-keygen -q -t ed25519 -N '' -f host && ssh-keygen -q -t ed25519 -N '' -f key && ssh-keygen -q -t ed25519 -N '' -f wrong
package=$("$python" -c 'import microbench; print(microbench.__path__[0])')
{
    printf 'ListenAddress 127.0.0.%s\n' 2 3 4 5
    printf '%s\n' 'Port 2222' "HostKey $here/host" "AuthorizedKeysFile $here/key.pub" 'StrictModes no' \
        "PidFile $here/sshd.pid" 'Match LocalAddress 127.0.0.5' \
        "ForceCommand unshare -m sh -c 'mount --bind $here/empty $package; sh -c \"\$SSH_ORIGINAL_COMMAND\"'"
} >sshd_config
for n in 2 3 4 5 6; do
    printf 'Host h%s\n HostName 127.0.0.%s\n Port 2222\n User root\n IdentityFile %s\n' \
        $n $n "$here/$([ $n = 4 ] && echo wrong || echo key)" >>.ssh/config
    echo "[127.0.0.$n]:2222 $(cut -d' ' -f1,2 host.pub)" >>.ssh/known_hosts
done
/usr/sbin/sshd -f sshd_config -E sshd.log
check 0 "2 of 2 runs are ok" 0 --quick --ssh h2,h3
check 1 "h4: failed: no SSH connection: Permission denied" 0 --quick --ssh h4,h2
check 1 "h5: failed: $python cannot be used there" 0 --quick --ssh h2,h5
check 1 "h6: failed: no SSH connection" 0 --quick --ssh h6,h3,h2
check 130 "not measured: interrupted" 8 --full --rounds 50 --ssh h2,h3
check 130 "" 2.5 --quick --ssh h2,h3 # while Dask starts

# Slurm: nodes n1 and n2, each with a slurmd of its own, and a munge whose socket and key are in the folder
dd if=/dev/urandom of=munge.key bs=128 count=1 status=none && chmod 400 munge.key
munged --force --socket="$here/munge" --key-file="$here/munge.key" --pid-file="$here/munge.pid" \
    --log-file="$here/munge.log" --seed-file="$here/munge.seed"
cat >slurm.conf <<EOF
ClusterName=fleet
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$here/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
StateSaveLocation=$here/state
SlurmdSpoolDir=$here/spool-%n
SlurmctldPidFile=$here/slurmctld.pid
SlurmdPidFile=$here/slurmd-%n.pid
SlurmctldLogFile=$here/slurmctld.log
SlurmdLogFile=$here/slurmd-%n.log
MpiDefault=none
NodeName=n1 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=17001 CPUs=1 State=UNKNOWN
NodeName=n2 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=17002 CPUs=1 State=UNKNOWN
PartitionName=gpu Nodes=n1,n2 State=UP
EOF
slurmctld && slurmd -N n1 && slurmd -N n2 && sleep 3
check 1 "No partition specified" 0 --quick --slurm 2
printf 'jobqueue: {slurm: {queue: gpu, walltime: "00:10:00"}}\n' >.config/dask/jobqueue.yaml
check 0 "2 of 2 runs are ok" 0 --quick --slurm 2
check 1 "it was still in the queue (Resources)" 0 --quick --slurm 3 --wait 8
check 130 "not measured: interrupted" 8 --full --rounds 50 --slurm 2
exit $((failures != 0))
