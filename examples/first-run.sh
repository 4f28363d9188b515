#!/usr/bin/env bash
# A first look at rota: 300 short jobs, one that fails at first and is tried again, and one that waits for it.
# Needs nothing but `rota` on PATH; everything happens in a temporary directory, which is removed at the end.
set -euo pipefail

work=$(mktemp -d "${TMPDIR:-/tmp}/rota-first-run.XXXXXX")
export ROTA_HOME="$work/home"
trap 'rota down --kill >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
cd "$work"

if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; else bold='' plain=''; fi
step() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
show() { printf '$ %s\n' "${*@Q}" | sed "s/'\([A-Za-z0-9_./:@=-]*\)'/\1/g"; "$@"; }

step "1. The manager keeps the queue. Settings are optional: here a failed job is tried again after about a second."
mkdir -m 700 "$ROTA_HOME"
printf 'backoff_first = "1s"\nbackoff_jitter = "1s"\n' > "$ROTA_HOME/config.toml"
show rota up

step "2. 300 jobs, one for each value: {} is the value, {index} its number."
seq 1 300 > numbers.txt
show rota run --name squares --values-from numbers.txt --stdout 'square.{index}' -- 'sleep 0.02; echo $(({} * {}))'

step "3. A job that fails the first time, and one that waits until it has succeeded."
cat > flaky.sh <<'SCRIPT'
#!/bin/sh
if [ ! -e been-here ]; then touch been-here; echo "not this time" >&2; exit 1; fi
cat square.* > all-squares
SCRIPT
chmod +x flaky.sh
show rota add --name collect --retries 1 -- ./flaky.sh
show rota add --name sum --after @collect -- awk '{ total += $1 } END { print total }' all-squares
show rota status
show rota explain 3.1

step "4. Wait for all, and look at what happened."
show rota wait @collect @sum --timeout 2m
show rota log 3.1
show rota history @collect
show rota jobs @collect @sum
[ "$(rota log 3.1)" = 9045050 ] || { echo "the sum of the squares should be 9045050" >&2; exit 1; }

step "That was all. Next: rota --help, docs/reference/cli.md, examples/sweep.sh, examples/notebook.py"
