#!/usr/bin/env bash
# A Slurm of one machine for the tests: slurm_cluster.sh start DIR | stop DIR. Needs root, and
# Debian's slurm-wlm and munge.
set -euo pipefail
verb=$1
dir=$2
host=$(hostname -s)

start() {
  # Another cluster may run beside this one; JAX makes its coordinator's port of the job's number.
  local port=$((16000 + $$ % 8000 * 2))
  mkdir -p "$dir"/{state,spool,log} /run/munge
  [ -e /etc/munge/munge.key ] || mungekey --create
  chown -R munge: /run/munge /etc/munge
  pgrep -x munged >/dev/null || runuser -u munge -- munged
  cat >"$dir/slurm.conf" <<EOF
ClusterName=cxrjax
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
FirstJobId=$((port * 2))
SlurmctldPort=$port
SlurmdPort=$((port + 1))
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.log
MpiDefault=none
KillWait=60
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
EOF
  export SLURM_CONF=$dir/slurm.conf
  slurmctld -c
  slurmd
  for _ in $(seq 60); do
    [ "$(sinfo -h -o %t 2>/dev/null)" = idle ] && return
    sleep 0.5
  done
  tail -n 20 "$dir"/log/*.log >&2
  echo "slurm did not come up" >&2
  exit 1
}

stop() {
  for daemon in slurmd slurmctld; do
    if [ -e "$dir/$daemon.pid" ]; then
      kill "$(cat "$dir/$daemon.pid")" || true
    fi
  done
}

"$verb"
