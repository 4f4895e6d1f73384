#!/usr/bin/env bash
# Builds the controller of Numaflow for its tests, unless it is built already. numaflow/go.mod pins its version, and numaflow/go.sum
# checks it. It has a folder of its own, so that a new Numaflow does not rebuild the other tools. Prints that folder, which also has the
# CustomResourceDefinitions, in crds/.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
hash=$(cd "$here" && sha256sum numaflow.sh numaflow/go.{mod,sum} | sha256sum | cut -c 1-16)
dir=$(realpath -m "${MULTINET_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/multinet/tools}/numaflow-$hash")
# A static program needs no C library. A go.work above the checkout would override the pinned versions.
export CGO_ENABLED=0 GOWORK=off

if [[ ! -x $dir/numaflow ]]; then
  mkdir -p "$dir"
  # Two test runs may start at once: the second waits here, and then finds it built.
  exec 9>"$dir/.lock"
  flock 9
fi
if [[ ! -x $dir/numaflow ]]; then
  echo "tests/tools: building numaflow" >&2
  # Renamed after the build, so that an interrupted build does not look like a finished one.
  go -C "$here/numaflow" build -mod=readonly -buildvcs=false -trimpath -ldflags="-s -w" -o "$dir/.numaflow" \
    github.com/numaproj/numaflow/cmd >"$dir/.log" 2>&1 </dev/null || { cat "$dir/.log" >&2; exit 1; }
  # These accept any spec, and are established in a fifth of the time that the full ones take.
  source=$(go -C "$here/numaflow" list -mod=readonly -m -f '{{.Dir}}' github.com/numaproj/numaflow)
  rm -rf "$dir/crds"
  mkdir "$dir/crds"
  install -m 644 "$source"/config/base/crds/minimal/numaflow.numaproj.io_*.yaml "$dir/crds"
  mv "$dir/.numaflow" "$dir/numaflow"
fi

echo "$dir"
