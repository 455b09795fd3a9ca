#!/bin/bash
# A run on several hosts, on one machine: benchmarks/hosts.sh [--hosts 3] [--mbit 200] [--updates 20] [--methods "ssgd asgd"] [WORD …]
#
# Each host is a network namespace with a link to a switch, which sends and receives so many Mbit/s (tc's tbf), and, where the system has time
# namespaces, with a clock of its own. hetsim-launch starts one process on each. A row compares the real seconds of an update with the
# simulated ones, for the link as it is described: its rate but for Ethernet's, IP's and TCP's headers, and the latency of the shortest round trip;
# and has the seconds of a real gradient. A method may have words of its own, after commas, as ssgd,coordination=parameter_server. WORDS are added to
# both runs of all. Nodes are described as computing in no time. It needs root and iproute2; nothing leaves the machine, and nothing is left of it.
set -euo pipefail

hosts=3 mbit=200 updates=20 methods="ssgd asgd"
while [[ ${1:-} == --* ]]; do
  [[ $# -ge 2 ]] || { echo "hosts.sh: $1 needs a value" >&2; exit 2; }
  case $1 in
    --hosts) hosts=$2 ;;
    --mbit) mbit=$2 ;;
    --updates) updates=$2 ;;
    --methods) methods=$2 ;;
    *) echo "hosts.sh: $1 is no option: take --hosts, --mbit, --updates or --methods" >&2; exit 2 ;;
  esac
  shift 2
done
for number in "$hosts" "$mbit" "$updates"; do
  [[ $number =~ ^[1-9][0-9]*$ ]] || { echo "hosts.sh: $number must be a whole number above 0" >&2; exit 2; }
done
(( 2 <= hosts && hosts <= 200 )) || { echo "hosts.sh: --hosts must be from 2 to 200, not $hosts" >&2; exit 2; }
[[ $(id -u) == 0 ]] || { echo "hosts.sh: network namespaces need root: run it with sudo" >&2; exit 3; }
for tool in ip tc; do
  command -v $tool > /dev/null || { echo "hosts.sh: there is no $tool: install iproute2" >&2; exit 3; }
done
cd "$(dirname "$0")/.."
python=${PYTHON:-$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1

name=hetsim$$
folder=$(mktemp -d)
launchers=()
clean() {
  trap - EXIT INT TERM
  for launcher in "${launchers[@]}"; do kill "$launcher" 2> /dev/null || true; done
  wait
  for (( k = 0; k < hosts; k++ )); do ip netns delete "$name-$k" 2> /dev/null || true; done
  ip netns delete "$name-switch" 2> /dev/null || true
  rm -rf "$folder"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

ip netns add "$name-switch" 2> "$folder/reason" || { echo "hosts.sh: no network namespace can be made: $(cat "$folder/reason")" >&2; exit 3; }
ip -n "$name-switch" link add switch type bridge
ip -n "$name-switch" link set switch up
shape=(root tbf rate "${mbit}mbit" burst 32kb latency 100ms)  # what may pass at once after a pause: little of a vector
for (( k = 0; k < hosts; k++ )); do
  ip netns add "$name-$k"
  ip -n "$name-$k" link set lo up
  ip -n "$name-$k" link add eth0 type veth peer name "port$k" netns "$name-switch"
  ip -n "$name-$k" address add "10.77.0.$(( k + 1 ))/24" dev eth0
  ip -n "$name-$k" link set eth0 up
  ip -n "$name-switch" link set "port$k" master switch up
  tc -n "$name-$k" qdisc add dev eth0 "${shape[@]}"
  tc -n "$name-switch" qdisc add dev "port$k" "${shape[@]}"
done
clock() { :; }
unshare --time --monotonic 1000 true 2> /dev/null && clock() { echo unshare --time --monotonic $(( 1000 * $1 )); }


mkdir -p "$folder/conf/cluster"
row() {  # method
  "$python" - "$1" "$folder/$1/summary.json" "$folder/$1-simulated/summary.json" << 'END'
import json, sys
method, real, simulated = sys.argv[1], *(json.load(open(path)) for path in sys.argv[2:])
measured, described = (1 / run["updates_per_second"] for run in (real, simulated))
gradient = sum(one["compute_seconds"] for one in real["per_worker"]) / sum(one["iterations"] for one in real["per_worker"])
clocks = real["emulation"].get("clocks")
error = "one clock" if clocks is None else f"{clocks['num_clocks']:.0f} clocks, to {1e6 * clocks['error_seconds']:.0f} µs"
print(f"{method:12} {measured:12.4f} {gradient:12.4f} {described:12.4f} {described / measured - 1:+9.2%}   {error}")
END
}
latency() {  # method
  "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["emulation"].get("clocks", {}).get("error_seconds", 1e-4))' "$folder/$1/summary.json"
}

echo "$hosts hosts, links of $mbit Mbit/s, $updates updates each; seconds of an update"
printf '%-12s %12s %12s %12s %9s\n' method measured gradient simulated error
port=29500
for chosen in $methods; do
  IFS=, read -ra own <<< "$chosen"
  method=${own[0]}
  coordination=$("$python" -m hetsim.cli.methods --json "$method" | "$python" -c 'import json, sys; print(json.load(sys.stdin)[0]["choices"]["coordination"])')
  for word in "${own[@]:1}"; do [[ $word != coordination=* ]] || coordination=${word#*=}; done
  case $coordination in *all_reduce | local_steps) servers=0 ;; *) servers=1 ;; esac
  rate=$(( mbit * 125000 * 1448 / 1514 ))
  cat > "$folder/conf/cluster/hosts.yaml" << END
name: hosts
nodes: [{count: $(( hosts - servers )), seconds_per_sample: 1e-9, overhead_seconds: 0}]
network: {latency_seconds: 1e-4, bytes_per_second: $rate, uplink_bytes_per_second: $rate, downlink_bytes_per_second: $rate}
server: {seconds_per_update: 0, uplink_bytes_per_second: $rate, downlink_bytes_per_second: $rate}
END
  words=(--config-dir "$folder/conf" cluster=hosts "method=$method" workload=phantom budget.epochs=null "budget.updates=$updates" pictures=false trace=full "${own[@]:1}" "$@")
  launchers=()
  for (( k = 0; k < hosts; k++ )); do
    # shellcheck disable=SC2046
    ip netns exec "$name-$k" $(clock $k) "$python" -m hetsim.cli.launch --nodes "$hosts" --node-rank $k --master "10.77.0.1:$port" -- \
      "${words[@]}" backend=dist "hydra.run.dir=$folder/$method" > "$folder/output$k" 2>&1 &
    launchers+=($!)
  done
  for launcher in "${launchers[@]}"; do
    wait "$launcher" || { cat "$folder"/output* >&2; exit 1; }
  done
  launchers=()
  simulated=()
  for word in "${words[@]}"; do [[ $word == backend.* ]] || simulated+=("$word"); done
  "$python" -m hetsim "${simulated[@]}" "cluster.network.latency_seconds=$(latency "$method")" "hydra.run.dir=$folder/$method-simulated" > /dev/null
  row "$method"
  port=$(( port + 1 ))
done
