#!/usr/bin/env bash
# Runs one test binary for cargo (CARGO_TARGET_…_RUNNER): with as many tests at once as suit it, and with the time of each test.
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
# Tests that wait for a control plane leave the cores to others; the default is one for each core.
case $name in
  cluster) export RUST_TEST_THREADS=${RUST_TEST_THREADS:-8} ;;
esac
# Tests of different crates may have the same name.
package=$(basename "${CARGO_MANIFEST_DIR:-.}")
# --report-time is not stable yet.
export RUSTC_BOOTSTRAP=1
exec "$(dirname "$0")/timed.sh" "test $package/$name" "$binary" -Z unstable-options --report-time "$@"
