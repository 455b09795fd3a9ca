#!/bin/sh
# About 15 minutes on one core. Stopped and started again, it goes on: results.csv keeps every run that is complete. From nothing: rm results.csv
# --quick takes 15 seconds: short runs with few candidates, into runs/studies/07-published-measurements.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python}
folder=.
if [ "${1:-}" = --quick ]; then
    folder=../../runs/studies/07-published-measurements
fi
"$python" predict.py "$@" --folder "$folder"
"$python" evaluate.py --folder "$folder"
"$python" plot.py --folder "$folder"
