#!/bin/sh
# `tenure cluster dev` with real nodes: starts, starts again what does not run, keeps what was
# stored, touches no process that is not its own, stops.
# usage: test_dev.sh BUILD_DIRECTORY
set -eu
tenure=$1/tenure
[ -x "$1/tenured" ] || { echo "test_dev: skipped, there is no $1/tenured"; exit 77; }
folder=$(mktemp -d "${TMPDIR:-/var/tmp}/tenure-dev-XXXXXX")
dir=$folder/nodes
trap '"$tenure" cluster dev --stop --dir "$dir" >/dev/null 2>&1 || true; rm -rf "$folder"' EXIT

fail() { echo "test_dev: $*" >&2; exit 1; }
expect() { [ "$2" = "$3" ] || fail "$1: expected '$2', got '$3'"; }
pid_of() { cat "$dir/$1/pid"; }

"$tenure" cluster dev 3 --dir "$dir" >"$folder/out" || fail "cluster dev 3: exit $?"
started=$(grep -c "^node [1-3]: socket .*/api.sock address 127.0.0.1:[0-9]* pid" "$folder/out")
expect "lines" 3 "$started"
voters=$("$tenure" cluster members --socket "$dir/2/api.sock" | grep -c ' voter ')
expect "voters" 3 "$voters"
"$tenure" take box --owner gateway-a --ttl 5m --socket "$dir/3/api.sock" >/dev/null

# Again: nothing is started twice.
before="$(pid_of 1) $(pid_of 2) $(pid_of 3)"
"$tenure" cluster dev 3 --dir "$dir" >/dev/null || fail "again: exit $?"
expect "pids" "$before" "$(pid_of 1) $(pid_of 2) $(pid_of 3)"

# One that died is started, the others are left alone, and it has its address again.
address=$(cat "$dir/2/address")
kill -9 "$(pid_of 2)"
"$tenure" cluster dev 3 --dir "$dir" >/dev/null || fail "one dead: exit $?"
expect "address" "$address" "$(cat "$dir/2/address")"
expect "pid of 1" "${before%% *}" "$(pid_of 1)"

"$tenure" cluster dev --stop --dir "$dir" >"$folder/out" || fail "stop: exit $?"
expect "stop" "stopped 3 nodes" "$(cat "$folder/out")"
"$tenure" cluster dev --stop --dir "$dir" >"$folder/out" || fail "stop again: exit $?"
expect "stop again" "stopped 0 nodes" "$(cat "$folder/out")"

# A pid file that names somebody else: this shell is neither waited for nor ended.
echo $$ >"$dir/1/pid"
"$tenure" cluster dev --stop --dir "$dir" >"$folder/out" || fail "foreign pid: exit $?"
expect "foreign pid" "stopped 0 nodes" "$(cat "$folder/out")"

"$tenure" cluster dev 3 --dir "$dir" >/dev/null || fail "after a full stop: exit $?"
"$tenure" owner box --socket "$dir/1/api.sock" | grep -q 'owner=gateway-a' ||
    fail "the lease did not survive"

# A path that no socket can have is told before anything is made.
long=$folder/$(printf '%0110d' 0)
"$tenure" cluster dev 1 --dir "$long" 2>"$folder/err" && fail "a long path was taken"
grep -q '107 bytes' "$folder/err" || fail "a long path: $(cat "$folder/err")"
echo "cluster dev: all as expected"
