#!/usr/bin/env bash
# Builds what the images of the tests on a node hold, with the flags of deploy/Dockerfile: static programs. The profile is another one than
# theirs, which takes minutes more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
flags=$(sed -n 's/^ENV RUSTFLAGS="\(.*\)"$/\1/p' deploy/Dockerfile)
[ -n "$flags" ] || { echo "deploy/Dockerfile names no RUSTFLAGS" >&2; exit 1; }
host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}
RUSTFLAGS=$flags cargo build --locked --profile image --target "$host" -p multinet-dns -p multinet-controller
mkdir -p "$target/image"
ln -f "$target/$host/image/multinet-dns" "$target/$host/image/multinet-controller" "$target/image"
