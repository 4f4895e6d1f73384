#!/usr/bin/env bash
# Copies the manifests that kustomize applies into the charts: copy.sh [--check]; --check only
# compares. Helm would print a warning for each link, with every command.
set -euo pipefail
cd "$(dirname "$0")"
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
chmod 755 "$made"
copy() { # FROM TO
  rm -rf "${made:?}"/*
  cp "$1"/*.yaml "$made"
  # Kustomize's own list, and the namespace, which must exist before a release.
  rm -f "$made"/{kustomization,namespace}.yaml
  if [ "$check" ]; then
    diff -ru "$2" "$made" || { echo "$2 is not what kustomize applies; run: deploy/helm/copy.sh" >&2; exit 1; }
  else
    rm -rf "$2"
    cp -r "$made" "$2"
  fi
}
check=${1-}
copy ../kustomize/base multinet/base
copy ../kustomize/overlays/network-status multinet/network-status
copy ../kustomize/components/publish multinet/publish
copy ../kustomize/components/numaflow multinet/numaflow
copy ../crds multinet-crds/templates
