#!/usr/bin/env bash
# Fuzzes each target for some seconds with libFuzzer: fuzz.sh [SECONDS]. Every rustc has coverage instrumentation; only sanitizers
# need cargo-fuzz and a nightly compiler, and the targets are safe code.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-10}
target=$(rustc -vV | sed -n 's/^host: //p')
flags=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
  -Ccodegen-units=1 --cfg fuzzing)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
# With --target, because RUSTFLAGS would instrument build scripts too without it.
RUSTFLAGS="${flags[*]}" cargo build --quiet --release --target "$target" --locked --manifest-path fuzz/Cargo.toml --workspace --bins
status=0
for source in */fuzz/targets/*.rs; do
  name=$(basename "$source" .rs)
  corpus=$CARGO_TARGET_DIR/corpus/$name
  mkdir -p "$corpus"
  seeds=${source%/targets/*}/seeds/$name
  [ "$name" != manifest ] || seeds=deploy/examples/quickstart
  echo "fuzzing $name for ${seconds}s" >&2
  log=$(mktemp)
  if ! "$CARGO_TARGET_DIR/$target/release/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="$CARGO_TARGET_DIR/$name-" "$corpus" "$seeds" >"$log" 2>&1; then
    tail -40 "$log" >&2
    echo "fuzz target $name failed; the input is $CARGO_TARGET_DIR/$name-*" >&2
    status=1
  fi
  # A crashed target prints neither line.
  { grep -E '^(Done|#[0-9]+.*DONE)' "$log" || true; } | tail -1 >&2
  rm -f "$log"
done
exit "$status"
