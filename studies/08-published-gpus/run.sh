#!/bin/sh
# About 2 minutes on one core: ./run.sh --published FOLDER, where FOLDER has the published measurements that may not be shipped.
# Without it, and with --quick (10 seconds, into runs/studies/08-published-gpus), Gavel's and DiLoCo's alone are predicted.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python}
PYTHONPATH="$PWD/..${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
folder=.
if [ "${1:-}" = --quick ] || [ "$#" = 0 ]; then
    folder=../../runs/studies/08-published-gpus
fi
"$python" predict.py "$@" --folder "$folder"
"$python" evaluate.py --folder "$folder"
"$python" plot.py --folder "$folder"
