#!/usr/bin/env bash
# Prints the folder of the CustomResourceDefinitions of other projects that deploy/examples uses. They come from the Go modules that
# definitions/go.mod pins and definitions/go.sum checks; nothing is built.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
hash=$(cd "$here" && sha256sum definitions.sh definitions/go.{mod,sum} | sha256sum | cut -c 1-16)
dir=$(realpath -m "${MULTINET_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/multinet/tools}/definitions-$hash")
# A go.work above the checkout would override the pinned versions.
export GOWORK=off

# Module, and the file in it.
files=(
  "github.com/kubeflow/mpi-operator           manifests/base/kubeflow.org_mpijobs.yaml"
  "github.com/ray-project/kuberay/ray-operator config/crd/bases/ray.io_rayclusters.yaml"
  "sigs.k8s.io/jobset config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"
  "sigs.k8s.io/lws    config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"
)

if [[ ! -d $dir ]]; then
  echo "tests/tools: downloading definitions" >&2
  go -C "$here/definitions" mod download
  mkdir -p "$(dirname "$dir")"
  # Renamed when it is complete, so that an interrupted run does not look like a finished one.
  new=$(mktemp -d "$dir.XXXXXX")
  for line in "${files[@]}"; do
    read -r module file <<<"$line"
    source=$(go -C "$here/definitions" list -mod=readonly -m -f '{{.Dir}}' "$module")
    install -m 644 "$source/$file" "$new"
  done
  chmod 755 "$new"
  # Of two runs at once, one is first.
  mv -T "$new" "$dir" 2>/dev/null || rm -rf "$new"
fi

echo "$dir"
