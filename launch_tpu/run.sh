#!/usr/bin/env bash
# Runs her_jax on every worker of a Cloud TPU VM, from your own machine.
#
#   launch_tpu/run.sh NAME [--zone=ZONE] [--project=PROJECT] [--dry_run] \
#       --config=CONFIG --workdir=WORKDIR [any other her_jax flag ...]
#   launch_tpu/run.sh NAME [--zone=ZONE] [--project=PROJECT] --attach
#   launch_tpu/run.sh NAME [--zone=ZONE] [--project=PROJECT] --stop
#
# NAME is the TPU VM, which exists already. The script
#   1. packs the files that git tracks here, as they are now, without out/ and .venv,
#   2. copies them to all workers and installs `.[tpu]` with the pinned versions into a virtual
#      environment there (a second launch with the same setup.py and pins skips this),
#   3. starts the same command on all workers, detached: it goes on when this script ends,
#   4. shows worker 0's log until the run ends, and ends with the run's exit code. If another
#      worker failed, the end of its log is shown too. Exit code 42: the run was told to end and
#      has saved; 43: a worker was lost, and so the run ended on all. The same command goes on where
#      it stopped, after 43 from the newest checkpoint. It is not given again by itself; see below.
# While a run goes on, another one under the same NAME is refused: they would share the chips.
#
#   --zone, --project  as for gcloud; gcloud's own defaults if missing
#   --dry_run          print the commands, one a line, quoted for a shell, and run none
#   --attach           show the log of the run that goes on, or of the last one
#   --stop             end the run on all workers; SFT and the judge save before, other tasks lose
#                      what they have not saved yet
#   --                 everything after it goes to her_jax, also a flag named like one of these
#
# Examples:
#   launch_tpu/run.sh pod1 --zone=us-east5-a --config=configs/genrm.py --workdir=/mnt/bucket/judge
#   launch_tpu/run.sh pod1 --config=configs/sft.py --workdir=/mnt/bucket/sft \
#       --config.optimizer.learning_rate=1e-5
#
# Again for as long as the run was told to end, or a worker was lost, and never after a failure:
#   until launch_tpu/run.sh pod1 --config=configs/sft.py --workdir=/mnt/bucket/sft; do
#     case $? in 42 | 43) sleep 60 ;; *) break ;; esac
#   done
#
# On each worker everything lies in ~/her_jax/NAME: src/, venv/, install.log and one folder a
# run, runs/ID/log. For more than one worker, load the SSH key of gcloud first:
# ssh-add ~/.ssh/google_compute_engine

# shellcheck disable=SC2329  # the stages are called by a name put together, traps by signals
set -euo pipefail

readonly BUSY=75 # exit code of a worker on which a run goes on already
readonly LOST=43 # exit code of a run that has lost another worker: her_jax/peers.py

# --- Helpers --------------------------------------------------------------------------------

die() {
  printf 'run.sh: %s\n' "$1" >&2
  exit "${2:-2}"
}

note() {
  printf 'run.sh: %s\n' "$1" >&2
}

# The argument, quoted so that any POSIX shell reads it back as one word. Not `printf %q`: that
# writes $'...', which sh and Python's shlex do not know.
quote() {
  local rest=$1 out=
  if [[ $rest =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]]; then
    printf '%s' "$rest"
    return
  fi
  while [[ $rest == *\'* ]]; do
    out+=${rest%%\'*}"'\\''"
    rest=${rest#*\'}
  done
  printf "'%s'" "$out$rest"
}

quote_all() {
  local separator='' word
  for word in "$@"; do
    printf '%s%s' "$separator" "$(quote "$word")"
    separator=' '
  done
}

# --- On a worker ----------------------------------------------------------------------------
#
# The same file, called there as `run.sh --on_worker STAGE ID ...` out of the copied code. gcloud
# repeats a command whose connection broke, so each stage may run twice for the same ID.

# Whether a run goes on. Each run and all its processes hold this lock, so it tells the truth
# also after a kill or a restart of the machine.
is_running() {
  ! flock --nonblock "$base/lock" true
}

# An exit code that ssh does not keep for itself: gcloud takes 255 for a broken connection.
exit_as() {
  exit $(($1 == 255 ? 254 : $1))
}

make_venv() {
  local python
  for python in python3.13 python3.12 python3.11 python3; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
      >/dev/null 2>&1; then
      "$python" -m venv --clear "$base/venv"
      return
    fi
  done
  # Many TPU images have Python 3.10 only; uv brings a newer one without root.
  note "no Python >= 3.11 on $(hostname): getting Python 3.12 with uv"
  python3 -m pip install --quiet --user uv &&
    python3 -m uv venv --quiet --clear --seed --python=3.12 "$base/venv"
}

stage_install() {
  local wanted log=$base/install.log
  cd "$base/src"
  exec 8>>"$base/install.lock"
  flock 8
  wanted=$(cat setup.py requirements-pinned.txt | sha256sum)
  if [[ $wanted == "$(cat "$base/venv/installed" 2>/dev/null)" ]]; then
    return
  fi
  if ! {
    { "$base/venv/bin/python" -m pip --version || make_venv; } &&
      "$base/venv/bin/python" -m pip install --disable-pip-version-check \
        -c requirements-pinned.txt -e '.[tpu]'
  } >"$log" 2>&1 </dev/null; then
    note "installing failed on $(hostname); the end of $log:"
    tail -n 20 "$log" >&2
    exit 1
  fi
  printf '%s' "$wanted" >"$base/venv/installed"
}

stage_start() {
  local id=$1 dir=$base/runs/$1
  exec 9>>"$base/lock"
  if ! flock --nonblock 9; then
    if [[ $(cat "$base/current" 2>/dev/null) == "$id" ]]; then return; fi
    exit "$BUSY"
  fi
  if [[ -e $dir/code ]]; then return; fi
  mkdir -p "$dir"
  printf '%s' "$id" >"$base/current"
  # The detached process inherits descriptor 9, and with it the lock.
  setsid bash "$base/src/launch_tpu/run.sh" --on_worker run "$@" \
    >"$dir/log" 2>&1 </dev/null &
  printf '%s' "$!" >"$dir/pid"
}

stage_run() {
  local dir=$base/runs/$1 code=0
  shift
  # A signal to the group ends Python; this shell stays to write its exit code down.
  trap : TERM INT HUP
  cd "$base/src"
  PYTHONUNBUFFERED=1 "$base/venv/bin/python" -m her_jax.main "$@" || code=$?
  printf '%s' "$code" >"$dir/code.new"
  mv "$dir/code.new" "$dir/code"
}

stage_follow() {
  local dir=$base/runs/$1 from='+1'
  # After a broken connection the whole log would come again: show its end only.
  if [[ -e $dir/followed ]]; then from=100; fi
  touch "$dir/followed"
  if is_running; then
    tail -n "$from" --sleep-interval=0.2 -F --pid="$(cat "$dir/pid")" "$dir/log" 2>/dev/null || true
  else
    tail -n "$from" "$dir/log"
  fi
  if [[ -e $dir/code ]]; then exit_as "$(cat "$dir/code")"; fi
  note "the run on $(hostname) ended without an exit code: killed, or the machine restarted"
  exit 137
}

# After worker 0's end: waits for this worker's, and shows what worker 0's log could not.
stage_result() {
  local dir=$base/runs/$1 code waited=0
  while is_running && ((waited < 300)); do
    sleep 1
    waited=$((waited + 1))
  done
  if is_running; then
    note "the run still goes on on $(hostname), 5 minutes after worker 0's ended"
    exit 124
  fi
  code=$(cat "$dir/code" 2>/dev/null || printf 137)
  if ((code != 0)) && [[ ! -e $dir/followed ]]; then
    note "exit code $code on $(hostname); the end of its log:"
    tail -n 20 "$dir/log" >&2
  fi
  # Worker 0's has been told.
  if [[ ! -e $dir/followed ]]; then exit_as "$code"; fi
}

# Fails where the run did, as it does not where it was told to end or lost a worker.
stage_failed() {
  [[ $(cat "$base/runs/$1/code" 2>/dev/null) != 1 ]]
}

stage_stop() {
  local dir=$base/runs/$1
  if ! is_running || [[ $(cat "$base/current") != "$1" || ! -e $dir/pid ]]; then
    note "no such run goes on on $(hostname)"
    return
  fi
  kill -TERM -- "-$(cat "$dir/pid")" 2>/dev/null || true
}

if [[ ${1:-} == --on_worker ]]; then
  (($# >= 3)) || die '--on_worker is for this script itself'
  base=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  stage=$2
  shift 2
  if [[ $1 == current ]]; then
    [[ -e $base/current ]] || die "no run was ever started on $(hostname)" 1
    shift
    set -- "$(cat "$base/current")" "$@"
  fi
  "stage_$stage" "$@"
  exit
fi

# --- On your machine ------------------------------------------------------------------------

usage() {
  sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

name='' zone='' project='' dry_run=false action=launch config='' workdir=''
flags=()
while (($# > 0)); do
  word=$1
  shift
  case $word in
    -h | --help)
      usage
      exit 0
      ;;
    --zone | --project)
      (($# > 0)) || die "$word needs a value: $word=..."
      set -- "$word=$1" "${@:2}"
      ;;
    --zone=*) zone=${word#*=} ;;
    --project=*) project=${word#*=} ;;
    --dry_run | --dry-run) dry_run=true ;;
    --attach) action=attach ;;
    --stop) action=stop ;;
    --)
      flags+=("$@")
      break
      ;;
    -*) flags+=("$word") ;;
    *)
      # The first bare word is NAME; a later one is the value of the flag before it.
      if [[ -z $name ]]; then
        ((${#flags[@]} == 0)) || die "NAME comes first: run.sh NAME ${flags[0]} ..."
        name=$word
      elif ((${#flags[@]} > 0)) && [[ ${flags[${#flags[@]} - 1]} == --[!=]* &&
        ${flags[${#flags[@]} - 1]} != *=* ]]; then
        flags+=("$word")
      else
        die "what is '$word'? After NAME come flags only"
      fi
      ;;
  esac
done

[[ -n $name ]] || die 'no NAME: which TPU VM? For example: launch_tpu/run.sh pod1 --config=configs/rl.py --workdir=/mnt/bucket/run1 (--help tells more)'
[[ $name =~ ^[a-z]([a-z0-9-]*[a-z0-9])?$ ]] ||
  die "NAME '$name' is no name of a TPU VM: small letters, digits and hyphens, a letter first"

target=()
[[ -z $zone ]] || target+=("--zone=$zone")
[[ -z $project ]] || target+=("--project=$project")

for ((i = 0; i < ${#flags[@]}; i++)); do
  case ${flags[i]} in
    --config=*) config=${flags[i]#*=} ;;
    --workdir=*) workdir=${flags[i]#*=} ;;
    --config) config=${flags[i + 1]:-} ;;
    --workdir) workdir=${flags[i + 1]:-} ;;
  esac
done

again=$(quote_all "${BASH_SOURCE[0]}" "$name" ${target[@]+"${target[@]}"})
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

if [[ $action == launch ]]; then
  [[ -n $config ]] || die 'no --config: what to run? For example --config=configs/rl.py'
  [[ -n $workdir ]] ||
    die 'no --workdir: where do results go? For example --workdir=/mnt/bucket/run1'
  case $workdir in
    *://*) die "--workdir=$workdir is not a folder: mount the bucket on all workers (gcsfuse) and pass its path" ;;
    /*) ;;
    *) note "--workdir=$workdir lies on each worker's own disk; with more than one worker, checkpoints need a folder that all share, such as a mounted bucket's" ;;
  esac
  if ! $dry_run; then
    git -C "$root" rev-parse --is-inside-work-tree >/dev/null 2>&1 ||
      die "$root is no git clone; the code to copy is what git tracks there"
    file=${config%%:*}
    [[ $file != /* ]] || die "--config=$config: give it from the root of the clone, such as configs/rl.py"
    if ! git -C "$root" ls-files --error-unmatch -- "$file" >/dev/null 2>&1; then
      die "--config=$config: git does not track $root/$file, so it would not be copied (git add it)"
    fi
  fi
elif ((${#flags[@]} > 0)); then
  die "--$action takes no other flag: ${flags[0]}"
fi

if ! $dry_run && ! command -v gcloud >/dev/null; then
  die 'gcloud is not installed: see https://cloud.google.com/sdk/docs/install' 127
fi

# Runs a command, or prints it.
step() {
  if $dry_run; then
    quote_all "$@"
    printf '\n'
  else
    "$@"
  fi
}

# `remote WORKER COMMAND`: a shell command line on one worker or on all.
remote() {
  step gcloud compute tpus tpu-vm ssh "$name" "--worker=$1" \
    ${target[@]+"${target[@]}"} "--command=$2"
}

# `on_worker WORKER STAGE ID [FLAG ...]`
on_worker() {
  local worker=$1
  shift
  remote "$worker" "$(quote_all bash "$there/src/launch_tpu/run.sh" --on_worker "$@")"
}

# Worker 0's log up to the end of the run, then what became of the other workers.
watch() {
  local code=0 others=0
  on_worker 0 follow "$1" || code=$?
  on_worker all result "$1" || others=$?
  if ((code == LOST || others == LOST)); then
    # gcloud gives one code of all; that a worker failed counts for more than that others lost it.
    code=$LOST
    on_worker all failed "$1" || code=1
  fi
  if ((code == 0)); then code=$others; fi
  return "$code"
}

interrupted() {
  note "stopped watching; the run goes on."
  note "watch it: $again --attach"
  note "end it:   $again --stop"
  exit 130
}

there=her_jax/$name # below the home directory of each worker

if [[ $action == stop ]]; then
  on_worker all stop current
  exit
fi

if [[ $action == attach ]]; then
  trap interrupted INT
  watch current && exit
  exit $?
fi

id=$(date -u +%Y%m%d-%H%M%S)-$$
pack=${TMPDIR:-/tmp}/her_jax-$id.tar.gz
trap 'rm -f "$pack"' EXIT

# Tracked files that were deleted but not committed are passed over.
# shellcheck disable=SC2016  # the words in single quotes are for the inner shell
step bash -c 'set -euo pipefail; cd "$1"; git ls-files -z -- . ":!out" ":!.venv" | while IFS= read -r -d "" file; do if [ -e "$file" ]; then printf "%s\0" "$file"; fi; done | tar -czf "$2" --null -T -' pack "$root" "$pack"

code=0
remote all "mkdir -p $there && { flock --nonblock $there/lock true || exit $BUSY; }" || code=$?
if ((code == BUSY)); then
  note "a run is already going on under the name $name; nothing was changed."
  note "watch it: $again --attach"
  note "end it:   $again --stop"
  exit "$BUSY"
fi
((code == 0)) || die "no connection to all workers of $name (exit code $code)" "$code"

step gcloud compute tpus tpu-vm scp "$pack" "$name:$there/code.tar.gz" --worker=all \
  ${target[@]+"${target[@]}"}
remote all "rm -rf $there/src && mkdir $there/src && tar -xzf $there/code.tar.gz -C $there/src"
on_worker all install "$id"

on_worker all start "$id" "${flags[@]}" || code=$?
if ((code != 0)); then
  # Those that did start would wait for the others.
  on_worker all stop "$id" || true
  die "the run did not start on all workers (exit code $code), so it was ended on all" "$code"
fi

trap interrupted INT
watch "$id" && exit
exit $?
