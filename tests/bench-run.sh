#!/usr/bin/env bash
# Compares ours with its peers in one run, and writes the tables into docs/benchmarks.md: bench-run.sh TARGET, which is one of
#   bench-dns          what an answer costs, beside Knot, NSD, CoreDNS and a bare echo (a quarter of an hour)
#   bench-programming  the way from pod to answer, beside kube-controller-manager and CoreDNS (twenty minutes)
#   bench-client       the client library beside iperf3, UCX and a bare echo over TCP (ten minutes)
#   bench-rdma         the client library beside perftest and UCX over soft-RoCE, in one guest (a quarter of an hour)
# What follows goes to the program, and the tables are only shown then: --quick takes a few minutes at most; bench-dns --only GROUP,…
# measures only these of udp, tcp, large, rate, latency, workers and memory. All figures with their spread are in
# target/TARGET.json.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1
shift
program=bench package=multinet-tests packages='' control_plane=yes
case $target in
  bench-dns) ours=(-p multinet-dns) packages=bench-dns ;;
  bench-programming) ours=(-p multinet-dns -p multinet-controller) ;;
  bench-client | bench-rdma)
    ours=(-p multinet-cli) program=client-bench package=multinet-client-e2e packages=$target control_plane=''
    ;;
  *) echo "there is no $target" >&2; exit 2 ;;
esac
tests/tools/packages.sh build
tests/tools/packages.sh "$packages"
[ -z "$control_plane" ] || tests/tools/build.sh >/dev/null
# As shipped. The generators share the cores with what is measured, and have to be faster, so they are optimised, too.
profile=${BENCH_PROFILE:-dist}
cargo build --profile "$profile" "${ours[@]}"
cargo build --profile "$profile" -p "$package" --bin "$program"
[ "$target" != bench-dns ] || cargo bench --profile "$profile" -p multinet-dns --bench packets --no-run
folder=$profile
[ "$profile" != dev ] || folder=debug
build=$(realpath "${CARGO_TARGET_DIR:-target}")
bin=$build/$folder
export MULTINET_BIN=$bin/multinet MULTINET_CONTROLLER_BIN=$bin/multinet-controller MULTINET_DNS_BIN=$bin/multinet-dns
result=$build/$target.json
part=$(mktemp)
trap 'rm -f "$part"' EXIT
timeout --kill-after=10 3600 "$bin/$program" "${target#bench-}" "$@" >"$result"
"$bin/$program" page <"$result" >"$part"
if (($#)); then
  cat "$part"
  exit
fi
[ "$target" != bench-dns ] || { echo; cargo bench --profile "$profile" -p multinet-dns --bench packets; } >>"$part"
tests/bench-page.sh "$target" <"$part"
