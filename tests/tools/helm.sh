#!/usr/bin/env bash
# Builds the Helm that the test of the chart runs, pinned by helm/go.mod and checked by helm/go.sum. It has a folder of its own, so that
# what the cluster tests need stays built when it changes.
# What is built already is kept. Standard output is one line: the program's path.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
hash=$(cd "$here" && sha256sum helm.sh helm/go.{mod,sum} | sha256sum | cut -c 1-16)
dir=$(realpath -m "${MULTINET_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/multinet/tools}/helm-$hash")
# It runs anywhere without a C library, and a go.work above the checkout does not override what is pinned.
export CGO_ENABLED=0 GOWORK=off

if [[ ! -x $dir/helm ]]; then
  mkdir -p "$dir"
  # Two test runs may start at once: the second waits here, then finds it built.
  exec 9>"$dir/.lock"
  flock 9
fi
if [[ ! -x $dir/helm ]]; then
  echo "tests/tools: building helm" >&2
  # A release says which Kubernetes it was made for, where a plain build would say 1.20.
  library=$(cd "$here/helm" && go list -mod=readonly -m -f '{{.Version}}' k8s.io/client-go)
  IFS=. read -r _ minor _ <<<"$library"
  made_for=helm.sh/helm/v3/pkg/chartutil.k8sVersion
  rules=helm.sh/helm/v3/pkg/lint/rules.k8sVersion
  ldflags="-s -w -X ${made_for}Major=1 -X ${made_for}Minor=$minor -X ${rules}Major=1 -X ${rules}Minor=$minor"
  # Under its own name only once it is whole: an interrupted build must not pass for a finished one.
  go -C "$here/helm" build -mod=readonly -buildvcs=false -trimpath -ldflags="$ldflags" -o "$dir/.helm" \
    helm.sh/helm/v3/cmd/helm >"$dir/.log" 2>&1 </dev/null || { cat "$dir/.log" >&2; exit 1; }
  mv "$dir/.helm" "$dir/helm"
fi

echo "$dir/helm"
