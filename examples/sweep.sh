#!/usr/bin/env bash
# A parameter sweep: every combination of three parameters, at most two cores at once, results in one table.
# Interrupt it with Ctrl-C and go on with `rota run --resume`.
set -euo pipefail

work=$(mktemp -d "${TMPDIR:-/tmp}/rota-sweep.XXXXXX")
export ROTA_HOME="$work/home"
trap 'rm -rf "$work"' EXIT
cd "$work"

cat > model.py <<'MODEL'
"""A stand-in for a real model: how far a ball flies with drag."""
import math, sys

angle, speed, drag = map(float, sys.argv[1:])
x = y = 0.0
vx, vy = speed * math.cos(math.radians(angle)), speed * math.sin(math.radians(angle))
while y >= 0.0:
    v = math.hypot(vx, vy)
    vx -= drag * v * vx * 0.001
    vy -= (9.81 + drag * v * vy) * 0.001
    x, y = x + vx * 0.001, y + vy * 0.001
print(f"{angle:g}\t{speed:g}\t{drag:g}\t{x:.2f}")
MODEL

seq 15 15 75 > angles.txt
rota run -j 2 --name sweep \
    --param angle@angles.txt --param speed=10,20,40 --param drag=0,0.01,0.05 \
    --stdout 'result.{index}' -- python3 model.py {angle} {speed} {drag}

printf 'angle\tspeed\tdrag\tdistance\n'
cat result.* | sort -k4,4gr | head -5
