#!/usr/bin/env bash
# Writes docs/benchmarks.md: multinet-dns next to CoreDNS, in the same run. Takes about five minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
tests/tools/packages.sh
tests/tools/build.sh >/dev/null
cargo build --release -p multinet-dns
MULTINET_DNS_BIN=${CARGO_TARGET_DIR:-target}/release/multinet-dns
MULTINET_DNS_BIN=$(realpath "$MULTINET_DNS_BIN")
export MULTINET_DNS_BIN
page=$(mktemp)
trap 'rm -f "$page"' EXIT
# What is measured are the servers; who measures may be a debug build.
cargo run -p multinet-tests --bin bench >"$page"
cat "$page" >docs/benchmarks.md
