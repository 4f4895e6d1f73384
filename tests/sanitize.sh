#!/usr/bin/env bash
# Runs the tests of the crate that talks to verbs, on its fake device, with AddressSanitizer: uses of memory that is not there, or no longer,
# and memory that is never given back, end the run. Its runtime comes with each toolchain; only the flag is kept for nightly compilers.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/sanitize
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1
# With --target, build scripts are what they are otherwise.
cargo test --locked --target "$target" -p multinet-verbs --lib
