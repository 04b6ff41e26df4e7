#!/usr/bin/env bash
# A stand-in for Google's gcloud: notes in $FAKE/calls what it is asked, and runs a worker's commands
# in $FAKE/worker.
printf '%s\n' "$*" >> "$FAKE/calls"
case "$*" in
  *"queued-resources describe"*) [ -e "$FAKE/there" ] ;;
  *"queued-resources create"*) touch "$FAKE/there" ;;
  *"queued-resources delete"*) rm "$FAKE/there" ;;
  *"tpu-vm ssh"*)
    for word in "$@"; do
      case $word in --command=*) cd "$FAKE/worker" && bash -c "${word#*=}" ;; esac
    done ;;
esac
