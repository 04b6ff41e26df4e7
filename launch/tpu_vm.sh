#!/usr/bin/env bash
# A TPU pod from nothing to a run and back to nothing, with gcloud.
#
#   launch/tpu_vm.sh create  --name=cxr --zone=us-west4-a --bucket=gs://B --type=v5e-16 [--spot]
#   launch/tpu_vm.sh install --name=cxr --zone=us-west4-a --bucket=gs://B  # or --share=10.0.0.2:/cxr
#   launch/tpu_vm.sh run     --name=cxr --zone=us-west4-a --run=vindr -- \
#       python -m cxrjax.train --distributed=auto ...      # the whole of it: docs/pods.md
#   launch/tpu_vm.sh logs    --name=cxr --zone=us-west4-a --run=vindr
#   launch/tpu_vm.sh stop    --name=cxr --zone=us-west4-a --run=vindr
#   launch/tpu_vm.sh delete  --name=cxr --zone=us-west4-a
#
# --project=P, if it is not gcloud's own. --dry_run prints the commands in place of running them. Every verb may be repeated: what is there
# is left as it is, what is gone is not missed. A pod costs money until `delete`.
#
# create: the pod, and the bucket if it is missing, in the zone's region.
# install: this checkout (what is committed), Python 3.11 and the packages on every worker. Each
# worker writes an object to the bucket and removes it; or it mounts the folder that all share (NFS,
# for example Filestore). The workdir must be in one of the two.
# run: on every worker, in the background; a command that ends with code 75 ("resume me": a
# maintenance event or `stop` made it save) is started again unless it was stopped.
set -euo pipefail

readonly SHARED=/mnt/shared RESUME=75

usage() {
  sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'
}

fail() {
  echo "tpu_vm.sh: $*" >&2
  exit 2
}

verb=${1:-}
case $verb in
  create | install | run | logs | stop | delete) shift ;;
  -h | --help | help) usage; exit 0 ;;
  *) fail "unknown verb '$verb': expected create, install, run, logs, stop or delete (--help)" ;;
esac

name='' zone='' project='' type='' share='' bucket='' run='' spot=0 dry=0
command=()
while (($#)); do
  case $1 in
    --name=*) name=${1#*=} ;;
    --zone=*) zone=${1#*=} ;;
    --project=*) project=${1#*=} ;;
    --type=*) type=${1#*=} ;;
    --share=*) share=${1#*=} ;;
    --bucket=*) bucket=${1#*=} ;;
    --run=*) run=${1#*=} ;;
    --spot) spot=1 ;;
    --dry_run) dry=1 ;;
    --) shift; command=("$@"); break ;;
    *) fail "unknown flag '$1' (--help)" ;;
  esac
  shift
done
[[ -n $name && -n $zone ]] || fail "$verb needs --name and --zone"
[[ $name =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]] || fail "--name=$name: lower-case letters, digits, dashes"

place=("--zone=$zone")
[[ -z $project ]] || place+=("--project=$project")

if [[ -n $bucket ]]; then
  [[ $bucket =~ ^gs://[a-z0-9][-._a-z0-9]{1,61}[a-z0-9]/?$ ]] || fail "--bucket=$bucket: expected gs://NAME"
  bucket=${bucket%/}
fi

do_it() {
  if ((dry)); then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}

tpus() { do_it gcloud compute tpus "$@" "${place[@]}"; }

# Whether the pod (or the request for it) is there; a dry run takes it that it is to be made.
exists() {
  ((!dry)) && gcloud compute tpus queued-resources describe "$name" "${place[@]}" >/dev/null 2>&1
}

everywhere() { tpus tpu-vm ssh "$name" --worker=all --command="$1"; }

accelerator_type() {
  [[ $1 =~ ^(v5e|v5p|v6e)-[0-9]+$ ]] || fail "--type=$1: expected v5e-N, v5p-N or v6e-N, such as v5e-16"
  echo "${1/#v5e/v5litepod}"
}

runtime_version() {
  case $1 in
    v5e-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
  esac
}

make_bucket() {
  local of=("${place[@]:1}")
  ((!dry)) && gcloud storage buckets describe "$bucket" "${of[@]}" >/dev/null 2>&1 && return
  do_it gcloud storage buckets create "$bucket" --location="${zone%-*}" \
    --uniform-bucket-level-access --public-access-prevention "${of[@]}"
}

create() {
  [[ -n $type ]] || fail "create needs --type, such as v5e-16"
  local accelerator runtime
  accelerator=$(accelerator_type "$type")
  runtime=$(runtime_version "$type")
  [[ -z $bucket ]] || make_bucket
  if exists; then
    echo "$name is there already"
    return
  fi
  local kind=()
  ((!spot)) || kind=(--spot)
  tpus queued-resources create "$name" --node-id="$name" --accelerator-type="$accelerator" \
    --runtime-version="$runtime" "${kind[@]}"
  ((!dry)) || return 0
  echo "$name is asked for; it is yours (and costs) from state ACTIVE on:"
  echo "  gcloud compute tpus queued-resources describe $name$(printf ' %q' "${place[@]}") --format='value(state.state)'"
}

install() {
  [[ -n $share$bucket ]] || fail "install needs --bucket=gs://NAME, or --share=SERVER:/FOLDER to mount at $SHARED"
  local archive extras=tpu reach=true
  if [[ -n $bucket ]]; then
    extras=tpu,gcs
    reach=".venv/bin/python -c 'from cxrjax import cli, paths; cli.run(lambda: paths.out_path(\"$bucket/.install\"))'"
  fi
  if [[ -n $share ]]; then
    [[ $share =~ ^[A-Za-z0-9._-]+:/[A-Za-z0-9._/-]*$ ]] || fail "--share=$share: expected SERVER:/FOLDER"
    reach+="; sudo mkdir -p $SHARED; command -v mount.nfs >/dev/null || sudo apt-get install -y -q nfs-common; \
mountpoint -q $SHARED || sudo mount -t nfs $share $SHARED"
  fi
  archive=$(mktemp --suffix=.tar.gz)
  # shellcheck disable=SC2064  # the name of now
  trap "rm -f '$archive'" EXIT
  do_it git -C "$(dirname "$0")/.." archive --format=tar.gz --output="$archive" HEAD
  tpus tpu-vm scp "$archive" "$name:cxrjax.tar.gz" --worker=all
  everywhere "set -e; mkdir -p cxrjax; tar -xzf cxrjax.tar.gz -C cxrjax; cd cxrjax; \
python3 -m pip install --quiet --user uv; \
[ -d .venv ] || python3 -m uv venv --python 3.11 .venv; \
python3 -m uv pip install --quiet -p .venv -c constraints.txt -e '.[$extras]'; $reach"
}

check_run() {
  [[ $run =~ ^[A-Za-z0-9_.-]+$ ]] || fail "$verb needs --run=NAME of letters, digits, '_', '.', '-'"
}

start() {
  check_run
  ((${#command[@]})) || fail "run needs a command after --"
  local words loop
  printf -v words '%q ' "${command[@]}"
  # Until it ends with something else than "resume me", or `stop` was asked for.
  loop="while :; do $words; code=\$?; [ \$code = $RESUME ] && [ ! -e runs/$run.stop ] || break; \
done; echo \"ended with code \$code\"; exit \$code"
  printf -v loop '%q' "$loop"
  everywhere "cd cxrjax; mkdir -p runs; \
if [ -e runs/$run.pid ] && kill -0 \$(cat runs/$run.pid) 2>/dev/null; then echo $run is running already; exit 0; fi; \
rm -f runs/$run.stop; export PATH=\$PWD/.venv/bin:\$PATH; \
setsid nohup bash -c $loop >> runs/$run.log 2>&1 < /dev/null & echo \$! > runs/$run.pid"
}

logs() {
  check_run
  tpus tpu-vm ssh "$name" --worker=0 --command="tail -n 100 -f cxrjax/runs/$run.log"
}

# SIGTERM: the run saves and ends with code 75, which the loop then takes as the end.
stop() {
  check_run
  everywhere "cd cxrjax; touch runs/$run.stop; \
[ -e runs/$run.pid ] && pkill -TERM -s \$(cat runs/$run.pid) python || echo $run is not running"
}

delete() {
  if ((!dry)) && ! exists; then
    echo "$name is gone already"
    return
  fi
  tpus queued-resources delete "$name" --force --quiet
}

case $verb in
  run) start ;;
  *) "$verb" ;;
esac
