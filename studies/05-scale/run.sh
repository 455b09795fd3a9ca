#!/bin/sh
# About 20 minutes on one core. Stopped and started again, it goes on: results.csv keeps every run that is complete. From nothing: rm results.csv
# --quick takes 40 seconds: few nodes, two seeds, into runs/studies/05-scale.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python}
export PYTHONPATH="..${PYTHONPATH:+:$PYTHONPATH}"
folder=.
if [ "${1:-}" = --quick ]; then
    folder=../../runs/studies/05-scale
fi
"$python" simulate.py "$@" --folder "$folder"
"$python" evaluate.py --folder "$folder"
"$python" plot.py --folder "$folder"
