#!/usr/bin/env bash
# Runs the unit tests of multinet-verbs, on its fake device, with AddressSanitizer, which fails on invalid memory accesses and on leaks.
# Each toolchain has its runtime; only the flag needs a nightly compiler, or RUSTC_BOOTSTRAP.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/sanitize
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1
# With --target, build scripts are not instrumented.
cargo test --locked --target "$target" -p multinet-verbs --lib
