#!/usr/bin/env bash
# Builds the programs of the test images, static with the flags of deploy/Dockerfile. Their profile builds minutes faster than that of
# shipped images.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
flags=$(sed -n 's/^ENV RUSTFLAGS="\(.*\)"$/\1/p' deploy/Dockerfile)
[ -n "$flags" ] || { echo "deploy/Dockerfile has no RUSTFLAGS" >&2; exit 1; }
host=$(rustc -vV | sed -n 's/^host: //p')
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export RUSTFLAGS=$flags
cargo build --locked --profile image --target "$host" -p multinet-dns -p multinet-controller
cargo build --locked --profile image --target "$host" -p multinet-cli --no-default-features
mkdir -p "$target/image"
cd "$target/$host/image"
ln -f multinet-dns multinet-controller multinet "$target/image"
