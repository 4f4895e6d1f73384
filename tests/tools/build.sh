#!/usr/bin/env bash
# Builds the Kubernetes programs that the tests start: the control plane and CoreDNS for the cluster tests; kubelet, Multus and the CNI
# plugins for the node tests. The go.mod files in the folders beside this script pin their versions, and the go.sum files check them.
# Programs that are built already are kept. Prints the folder of the programs.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# binary, folder of the go.mod that pins it, package. etcd and the API server come first: most tests need only them.
tools=(
  "etcd                    kubernetes  go.etcd.io/etcd/server/v3"
  "kube-apiserver          kubernetes  k8s.io/kubernetes/cmd/kube-apiserver"
  "coredns                 coredns     github.com/coredns/coredns"
  "kubectl                 kubernetes  k8s.io/kubernetes/cmd/kubectl"
  "kube-controller-manager kubernetes  k8s.io/kubernetes/cmd/kube-controller-manager"
  "kube-scheduler          kubernetes  k8s.io/kubernetes/cmd/kube-scheduler"
  "kubelet                 kubernetes  k8s.io/kubernetes/cmd/kubelet"
  "multus                  multus      gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus"
  "whereabouts             whereabouts github.com/k8snetworkplumbingwg/whereabouts/cmd"
  "cnitool                 cni         github.com/containernetworking/cni/cnitool"
  "bridge                  cni         github.com/containernetworking/plugins/plugins/main/bridge"
  "macvlan                 cni         github.com/containernetworking/plugins/plugins/main/macvlan"
  "host-device             cni         github.com/containernetworking/plugins/plugins/main/host-device"
  "loopback                cni         github.com/containernetworking/plugins/plugins/main/loopback"
  "host-local              cni         github.com/containernetworking/plugins/plugins/ipam/host-local"
)

# The folder's name is a hash of all inputs, so a new version never uses an old binary.
inputs=(build.sh {kubernetes,coredns,multus,whereabouts,cni}/go.{mod,sum})
hash=$(cd "$here" && sha256sum "${inputs[@]}" | sha256sum | cut -c 1-16)
dir=$(realpath -m "${MULTINET_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/multinet/tools}/$hash")

missing() {
  local name rest
  for tool in "${tools[@]}"; do
    read -r name rest <<<"$tool"
    [[ -x $dir/$name ]] || echo "$tool"
  done
}

say() {
  echo "tests/tools: $*" >&2
}

# Static binaries run in any network namespace, container or guest, and need no C compiler.
export CGO_ENABLED=0
# A go.work above the checkout would override the pinned versions.
export GOWORK=off

if [[ -n $(missing) ]]; then
  mkdir -p "$dir"
  # Two test runs may start at once: the second waits here, and then finds everything built.
  exec 9>"$dir/.lock"
  flock -n 9 || { say "waiting for another build"; flock 9; }

  # The go.mod names a version of Go. Go fetches it here, if GOTOOLCHAIN allows that.
  list=(go list -mod=readonly -m -f '{{.Version}}' k8s.io/kubernetes)
  if ! version=$(cd "$here/kubernetes" && "${list[@]}" 2>"$dir/.log"); then
    say "install Go 1.26 or newer ($(tail -n 1 "$dir/.log"))"
    exit 1
  fi
  IFS=. read -r major minor _ <<<"${version#v}"
  # Clients, Helm and kubectl read the server's version, which is empty without these flags.
  stamp=k8s.io/component-base/version
  ldflags="-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=$major -X $stamp.gitMinor=$minor"

  missing | while read -r name module package; do
    say "building $name"
    # Renamed after the build, so that an interrupted build does not look like a finished one.
    go -C "$here/$module" build -mod=readonly -buildvcs=false -trimpath -ldflags="$ldflags" \
      -o "$dir/.$name" "$package" >"$dir/.log" 2>&1 </dev/null || { cat "$dir/.log" >&2; exit 1; }
    mv "$dir/.$name" "$dir/$name"
  done
fi

echo "$dir"
