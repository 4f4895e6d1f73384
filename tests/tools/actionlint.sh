#!/usr/bin/env bash
# Builds actionlint, which checks .github/workflows, unless it is built already. Prints the program's path.
set -euo pipefail

version=v1.7.12 # checked by Go's checksum database
dir=$(realpath -m "${MULTINET_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/multinet/tools}/actionlint-$version")
if [[ ! -x $dir/actionlint ]]; then
  command -v go >/dev/null || { echo "tests/tools: install Go 1.26 or newer" >&2; exit 1; }
  echo "tests/tools: building actionlint" >&2
  CGO_ENABLED=0 GOWORK=off GOFLAGS=-buildvcs=false GOBIN=$dir go install "github.com/rhysd/actionlint/cmd/actionlint@$version" >&2
fi
echo "$dir/actionlint"
