#!/usr/bin/env bash
# Compares multinet-dns with CoreDNS, in the same run, and writes the result into docs/benchmarks.md. Takes about five minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
tests/tools/packages.sh
tests/tools/build.sh >/dev/null
cargo build --release -p multinet-dns
MULTINET_DNS_BIN=$(realpath "${CARGO_TARGET_DIR:-target}/release/multinet-dns")
export MULTINET_DNS_BIN
part=$(mktemp)
trap 'rm -f "$part"' EXIT
# What is measured are the servers; who measures may be a debug build.
cargo run -p multinet-tests --bin bench >"$part"
tests/bench-page.sh bench <"$part"
