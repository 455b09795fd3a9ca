#!/bin/sh
# About 75 minutes on one core, with MNIST/raw and CIFAR-10 in the folder data of the repository, or --data-root FOLDER. Stopped and started again, it goes on:
# results.csv keeps every run that is complete. From nothing: rm results.csv. The last 18 runs are real processes: nothing else should run then.
# --quick takes 20 seconds: digits in the place of MNIST, two regimes, three settings, two seeds, into runs/studies/02-one-step-delay.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python}
export PYTHONPATH="..${PYTHONPATH:+:$PYTHONPATH}"
folder=.
if [ "${1:-}" = --quick ]; then
    folder=../../runs/studies/02-one-step-delay
fi
"$python" train.py "$@" --folder "$folder"
"$python" evaluate.py --folder "$folder"
"$python" plot.py --folder "$folder"
