#!/bin/bash
# A command on a narrow network: benchmarks/narrow.sh [--mbit 1000] COMMAND …
#
# It runs in a network namespace of its own, whose loopback interface carries so many Mbit/s in all (tc's tbf), as
#
#     sudo benchmarks/narrow.sh --mbit 1000 .venv/bin/python benchmarks/step.py --ranks 2 --models cnn
#
# It needs root and iproute2; nothing leaves the machine, and nothing is left of the namespace.
set -euo pipefail

mbit=1000
if [[ ${1:-} == --mbit ]]; then
  mbit=${2:-}
  shift 2 || true
fi
[[ $mbit =~ ^[1-9][0-9]*$ ]] || { echo "narrow.sh: --mbit must be a whole number above 0, not '$mbit'" >&2; exit 2; }
[[ $# -gt 0 ]] || { echo "narrow.sh: which command? narrow.sh [--mbit $mbit] COMMAND …" >&2; exit 2; }
[[ $(id -u) == 0 ]] || { echo "narrow.sh: network namespaces need root: run it with sudo" >&2; exit 3; }
for tool in ip tc; do
  command -v $tool > /dev/null || { echo "narrow.sh: there is no $tool: install iproute2" >&2; exit 3; }
done
name=hetsim-narrow$$
trap 'ip netns delete "$name" 2> /dev/null || true' EXIT
ip netns add "$name" || { echo "narrow.sh: no network namespace can be made" >&2; exit 3; }
ip -n "$name" link set lo mtu 1500 up
tc -n "$name" qdisc add dev lo root tbf rate "${mbit}mbit" burst 32kb latency 100ms
ip netns exec "$name" "$@"
