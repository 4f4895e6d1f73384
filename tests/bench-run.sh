#!/usr/bin/env bash
# Compares ours with its peers in one run, and writes the tables into docs/benchmarks.md: bench-run.sh TARGET [FLAG…]. The target is
#   bench-dns          the cost of an answer: Knot, NSD, CoreDNS and an echo server (15 minutes)
#   bench-programming  the time from a pod's change to the answer: kube-controller-manager and CoreDNS (20 minutes)
#   bench-client       the client library: iperf3, UCX and a TCP echo (10 minutes)
#   bench-rdma         the client library over soft-RoCE: perftest and UCX, in one guest (15 minutes)
# With flags, it only prints the tables. --quick takes a few minutes at most; bench-dns --only GROUP,… measures only these groups of
# udp, tcp, large, rate, latency, workers and memory. target/TARGET.json has all figures with their spread.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1
shift
program=bench package=multinet-tests packages='' control_plane=yes
case $target in
  bench-dns) ours=(-p multinet-dns) packages=bench-dns ;;
  bench-programming) ours=(-p multinet-dns -p multinet-controller -p multinet-numaflow) ;;
  bench-client | bench-rdma)
    ours=(-p multinet-cli) program=client-bench package=multinet-client-e2e packages=$target control_plane=''
    ;;
  *) echo "bench-run.sh: unknown target $target" >&2; exit 2 ;;
esac
tests/tools/packages.sh build
tests/tools/packages.sh "$packages"
[ -z "$control_plane" ] || tests/tools/build.sh >/dev/null
# The profile of shipped builds. The generators share the cores with the measured programs and must be faster, so they have it too.
profile=${BENCH_PROFILE:-dist}
cargo build --profile "$profile" "${ours[@]}"
cargo build --profile "$profile" -p "$package" --bin "$program"
[ "$target" != bench-dns ] || cargo bench --profile "$profile" -p multinet-dns --bench packets --no-run
folder=$profile
[ "$profile" != dev ] || folder=debug
build=$(realpath "${CARGO_TARGET_DIR:-target}")
bin=$build/$folder
export MULTINET_BIN=$bin/multinet MULTINET_CONTROLLER_BIN=$bin/multinet-controller MULTINET_DNS_BIN=$bin/multinet-dns
export MULTINET_NUMAFLOW_BIN=$bin/multinet-numaflow
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
