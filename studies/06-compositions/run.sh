#!/bin/sh
# About 80 minutes on one core, and five of real processes on an idle machine, with MNIST/raw and CIFAR-10 in the folder data of the repository, or
# --data-root FOLDER. Stopped and started again, it goes on: results.csv, convolutions.csv, language.csv and measured.csv keep every run that is complete.
# From nothing: rm them.
# --quick takes 40 seconds: digits in the place of MNIST, one cluster, a short search, two seeds, into runs/studies/06-compositions.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python}
export PYTHONPATH="..${PYTHONPATH:+:$PYTHONPATH}"
folder=.
if [ "${1:-}" = --quick ]; then
    folder=../../runs/studies/06-compositions
fi
"$python" train.py "$@" --folder "$folder"
"$python" convolutions.py "$@" --folder "$folder"
"$python" language.py "$@" --folder "$folder"
"$python" measure.py "$@" --folder "$folder"
"$python" evaluate.py --folder "$folder"
"$python" plot.py --folder "$folder"
