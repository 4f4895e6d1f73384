#!/usr/bin/env bash
# Runs a test binary for cargo (CARGO_TARGET_…_RUNNER), with a number of threads that suits it, and with the time of each test.
set -euo pipefail
binary=$1
shift
name=$(basename "$binary")
# cargo appends a hash.
name=${name%-*}
case $binary in
  */deps/*) ;;
  *) exec "$binary" "$@" ;; # a program or an example
esac
# Tests of different crates may have the same name.
name=$(basename "${CARGO_MANIFEST_DIR:-.}")/$name
# Tests that mostly wait can outnumber the cores; the default is one test per core.
case $name in
  tests/cluster | tests/conformance | client-lib/it | cli/it | runtime/*) threads=8 ;;
  e2e/client) threads=4 ;;
  e2e/rdma) threads=1 ;; # there is one guest
  *) threads=$(nproc) ;;
esac
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$threads}
# --report-time is not stable yet.
export RUSTC_BOOTSTRAP=1
exec "$(dirname "$0")/timed.sh" "test $name" "$binary" -Z unstable-options --report-time "$@"
