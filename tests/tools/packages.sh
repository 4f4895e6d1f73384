#!/usr/bin/env bash
# Sees to it that the commands that the tests call are installed, from Debian's or Ubuntu's packages; with `bench-client` or
# `shellcheck`, those that these call instead. Where it may not install them, it prints the command that does and fails.
set -euo pipefail

# command, package
needed=(
  "dig        bind9-dnsutils"
  "kdig       knot-dnsutils"
  "dnsperf    dnsperf"
  "g++        g++"
  "shellcheck shellcheck"
  "containerd containerd"
  "runc       runc"
  "busybox    busybox-static"
  "ip         iproute2"
  "iptables   iptables"
  "conntrack  conntrack"
)

case "${1:-}" in
  bench-client) needed=("iperf3 iperf3" "ucx_perftest ucx-utils") ;;
  shellcheck) needed=("shellcheck shellcheck") ;;
esac

missing=()
for line in "${needed[@]}"; do
  read -r command package <<<"$line"
  command -v "$command" >/dev/null || missing+=("$package")
done
((${#missing[@]})) || exit 0

install=(apt-get install -y --no-install-recommends "${missing[@]}")
if ((EUID == 0)); then
  as_root=()
else
  as_root=(sudo -n)
fi

if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
  echo "tests/tools: packages are missing; install them with: sudo apt-get update && sudo ${install[*]}" >&2
  exit 1
fi

echo "tests/tools: installing ${missing[*]}" >&2
as_root+=(env DEBIAN_FRONTEND=noninteractive)
"${as_root[@]}" apt-get update >&2
"${as_root[@]}" "${install[@]}" >&2
