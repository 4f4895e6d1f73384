#!/usr/bin/env bash
# Runs the long tests one after the other, against a release build of multinet-dns: the ignored ones with soak in their names. Writes
# their figures into docs/benchmarks.md. Takes an hour and needs 16 GiB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."
tests/tools/packages.sh
tests/tools/build.sh >/dev/null
# Programs and examples that tests start.
cargo build --workspace --bins --examples
cargo build --release -p multinet-dns
MULTINET_DNS_BIN=$(realpath "${CARGO_TARGET_DIR:-target}/release/multinet-dns")
MULTINET_SOAK_TABLE=$(mktemp)
export MULTINET_DNS_BIN MULTINET_SOAK_TABLE
page=$(mktemp)
trap 'rm -f "$MULTINET_SOAK_TABLE" "$page"' EXIT
cargo test --workspace --lib --bins --tests --no-fail-fast -- --ignored --nocapture --test-threads 1 soak
{
  echo "Written by \`make soak\`, which fails if a figure exceeds its bound. Machine: $(nproc) cores for everything, $(uname -sm)."
  echo
  echo "| what | figure |"
  echo "|---|---|"
  cat "$MULTINET_SOAK_TABLE"
} >"$page"
tests/bench-page.sh soak <"$page"
