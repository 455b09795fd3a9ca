#!/bin/sh
# About 3 hours on two cores on which nothing else runs; the namespaces of the capped links need root and iproute2, the quotas cgroups. Stopped and
# started again, it goes on: the tables keep every run that is complete. From nothing: rm -r calibrated predictions.csv results.csv
# --quick takes 70 seconds: one padded cluster, two methods, short runs, into runs/studies/04-simulated-against-measured.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python}
folder=.
if [ "${1:-}" = --quick ]; then
    folder=../../runs/studies/04-simulated-against-measured
    few="--folder $folder --clusters padded --methods ssgd asgd --repeats 2 --seconds 2"
    # shellcheck disable=SC2086
    "$python" predict.py $few
    # shellcheck disable=SC2086
    "$python" measure.py $few
else
    "$python" calibrate.py
    "$python" predict.py
    "$python" measure.py
fi
"$python" evaluate.py --folder "$folder"
"$python" plot.py --folder "$folder"
