#!/bin/sh
# About 15 minutes on one core: ./run.sh --published FOLDER, where FOLDER has the two traces, which may not be shipped.
# Without it, and with --quick (15 seconds, into runs/studies/09-spot), a made trace stands for them. measure.py is run apart.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python}
PYTHONPATH="$PWD/..${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
folder=.
if [ "${1:-}" = --quick ] || [ "$#" = 0 ]; then
    folder=../../runs/studies/09-spot
    set -- --quick
fi
"$python" simulate.py "$@" --folder "$folder"
"$python" evaluate.py --folder "$folder"
"$python" plot.py --folder "$folder"
