#!/usr/bin/env bash
# Every test: installs the tools, runs cargo's tests, those of the store under a scheduler, those of verbs once more with a sanitizer, and
# a short round of fuzzing, then says how many passed, failed, were skipped and why. Exit status 0 only if nothing failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

tests/tools/packages.sh || exit 1
tests/tools/build.sh >/dev/null || exit 1
tests/tools/helm.sh >/dev/null || exit 1
tests/tools/guest.sh >/dev/null || exit 1

tests/tools/image-programs.sh || exit 1
# The tests, and with them the programs and the examples that they start: built by themselves, these would have other features of what
# they depend on, and that would be compiled once more.
cargo test --workspace --no-run || exit 1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MULTINET_SKIP_LOG=$work/skipped
: >"$MULTINET_SKIP_LOG"

cargo test --workspace --no-fail-fast 2>&1 | tee "$work/log"
cargo_status=${PIPESTATUS[0]}

# The example with somebody else's SDK is a workspace of its own.
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/numaflow \
  cargo test --locked --manifest-path client-lib/examples/numaflow/Cargo.toml 2>&1 | tee -a "$work/log"
numaflow_status=${PIPESTATUS[0]}
[ "$cargo_status" -ne 0 ] || cargo_status=$numaflow_status

# The store under a scheduler that chooses the order of its steps. With its locks the server would not run: afterwards that is put back as it was.
cargo test --workspace --features multinet-dns/shuttle --lib --test model orders:: -- --skip tests::orders 2>&1 \
  | tee "$work/orders"
orders_status=${PIPESTATUS[0]}
cargo test --workspace --no-run --quiet || orders_status=1
cat "$work/orders" >>"$work/log"
# A filter that finds nothing is no error to cargo.
for found in 'test orders::' 'test limit::orders::'; do
  grep -q "^$found.* ok$" "$work/orders" || orders_status=1
done
[ "$cargo_status" -ne 0 ] || cargo_status=$orders_status

tests/sanitize.sh 2>&1 | tee -a "$work/log"
sanitize_status=${PIPESTATUS[0]}
[ "$cargo_status" -ne 0 ] || cargo_status=$sanitize_status

fuzz_status=0
tests/fuzz.sh "${FUZZ_SECONDS:-10}" 2>&1 | tee -a "$work/log"
[ "${PIPESTATUS[0]}" -eq 0 ] || fuzz_status=1

# cargo prints one "test result:" line per test binary.
read -r passed failed ignored < <(awk '/^test result:/ { p += $4; f += $6; i += $8 } END { print p+0, f+0, i+0 }' "$work/log")
# A test that skips itself has passed as far as cargo knows.
skipped=$(wc -l <"$MULTINET_SKIP_LOG")
passed=$((passed - skipped))
failed=$((failed + fuzz_status))
# Where nothing but some things may be missing, a test that is skipped for another reason has failed.
unexpected() { grep -vE "${MULTINET_MAY_SKIP:-}" "$MULTINET_SKIP_LOG"; }
failed=$((failed + $(unexpected | wc -l)))
# A test binary that crashed has no result line, nor has one that did not compile.
failed=$((failed + $(grep -c "process didn't exit successfully.*signal:" "$work/log")))
# A leak is found when all tests have passed; what else the sanitizer finds ends them.
failed=$((failed + $(grep -c '^SUMMARY: AddressSanitizer' "$work/log")))
if [ "$cargo_status" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi

echo
if [ "$failed" -gt 0 ]; then
  echo "Failed:"
  grep -E '^test .* FAILED$|^error: could not compile|^error: test failed|^SUMMARY: AddressSanitizer|^fuzz target' "$work/log" | sort -u | sed 's/^/  /'
  unexpected | sed 's/^/  skipped: /'
  echo "What they said, in short (all of it is above):"
  grep -E -A4 "^Error: |^thread '.*panicked at" "$work/log" | grep -vE '^$|^Stack backtrace' | head -40 | sed 's/^/  /'
fi
if [ $((skipped + ignored)) -gt 0 ]; then
  echo "Skipped:"
  sort "$MULTINET_SKIP_LOG" | sed 's/^/  /'
  grep -E '^test .* \.\.\. ignored' "$work/log" | sort -u | sed 's/^test /  /'
fi
echo "$passed passed, $failed failed, $((skipped + ignored)) skipped"
[ "$failed" -eq 0 ]
