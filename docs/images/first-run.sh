#!/usr/bin/env bash
# Makes docs/images/first-run.svg from a real run with the rota of .venv. Look at the picture before you commit it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PATH=$(cd "$here/../../.venv/bin" && pwd):$PATH
command -v rota >/dev/null || { echo "no rota in .venv: make dev" >&2; exit 1; }
work=$(mktemp -d)
export ROTA_HOME=/tmp/rota-demo
trap 'rota down --kill >/dev/null 2>&1 || true; rm -rf "$work" "$ROTA_HOME"' EXIT
[ ! -e "$ROTA_HOME" ] || { echo "$ROTA_HOME exists" >&2; trap - EXIT; exit 1; }
cd "$work"
cat > simulate <<'SCRIPT'
#!/bin/bash
# simulate --seed N: takes a moment; one seed does not converge
seed=$2
if [ -z "${CONVERGE:-}" ] && [ "$seed" = 17 ]; then
    sleep 0.2
    echo "iteration 400: residual 0.73" >&2
    echo "seed 17: did not converge" >&2
    exit 3
fi
sleep 0.$((RANDOM % 3))$((RANDOM % 10))
[ "$seed" = 40 ] && sleep 1
echo "seed $seed: energy -$((RANDOM % 9)).$RANDOM"
SCRIPT
chmod +x simulate
python3 "$here/../../tools/terminal_svg.py" --while 4 "$here/first-run.svg" \
    "rota run --array 1-60 --name sweep -- ./simulate --seed {index}" \
    "rota up" "rota explain 1.17" "CONVERGE=1 rota add --name again -- ./simulate --seed 17" \
    "rota wait @again" "rota log 2.1" "rota status"
