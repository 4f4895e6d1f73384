#!/usr/bin/env bash
# Builds Helm for the tests of the chart, unless it is built already. helm/go.mod pins its version, and helm/go.sum checks it. It has a
# folder of its own, so that a new Helm does not rebuild the other tools. Prints the program's path.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
hash=$(cd "$here" && sha256sum helm.sh helm/go.{mod,sum} | sha256sum | cut -c 1-16)
dir=$(realpath -m "${MULTINET_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/multinet/tools}/helm-$hash")
# A static program needs no C library. A go.work above the checkout would override the pinned versions.
export CGO_ENABLED=0 GOWORK=off

if [[ ! -x $dir/helm ]]; then
  mkdir -p "$dir"
  # Two test runs may start at once: the second waits here, and then finds it built.
  exec 9>"$dir/.lock"
  flock 9
fi
if [[ ! -x $dir/helm ]]; then
  echo "tests/tools: building helm" >&2
  # As in a release: the version of Kubernetes that Helm was made for. Without it, the version is 1.20.
  library=$(cd "$here/helm" && go list -mod=readonly -m -f '{{.Version}}' k8s.io/client-go)
  IFS=. read -r _ minor _ <<<"$library"
  made_for=helm.sh/helm/v3/pkg/chartutil.k8sVersion
  rules=helm.sh/helm/v3/pkg/lint/rules.k8sVersion
  ldflags="-s -w -X ${made_for}Major=1 -X ${made_for}Minor=$minor -X ${rules}Major=1 -X ${rules}Minor=$minor"
  # Renamed after the build, so that an interrupted build does not look like a finished one.
  go -C "$here/helm" build -mod=readonly -buildvcs=false -trimpath -ldflags="$ldflags" -o "$dir/.helm" \
    helm.sh/helm/v3/cmd/helm >"$dir/.log" 2>&1 </dev/null || { cat "$dir/.log" >&2; exit 1; }
  mv "$dir/.helm" "$dir/helm"
fi

echo "$dir/helm"
