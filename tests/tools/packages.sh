#!/usr/bin/env bash
# Installs the commands that the tests call from Debian or Ubuntu packages: packages.sh [GROUP], for only one of the groups build,
# bench-client, bench-dns, bench-rdma and shellcheck. Without permission to install, it fails and prints the command.
set -euo pipefail

# Debian installs some commands in sbin, which an ordinary user's PATH lacks.
PATH=$PATH:/usr/sbin:/sbin

# Command and package; for a package without commands, one of its files. These are for rdma-sys.
build=(
  "pkg-config                      pkgconf"
  "/usr/lib/llvm-*/lib/libclang.so libclang-dev"
  "/usr/include/infiniband/verbs.h libibverbs-dev"
  "/usr/include/rdma/rdma_cma.h    librdmacm-dev"
)
# For the guest with soft-RoCE: to build it, to boot it, and to test in it.
guest=(
  "busybox    busybox-static"
  "ip         iproute2"
  "depmod                        kmod"
  "cpio                          cpio"
  "xz                            xz-utils"
  "zstd                          zstd"
  "qemu-system-x86_64            qemu-system-x86"
  "/usr/lib/*/libibverbs/librxe-* ibverbs-providers"
  "ibv_devinfo                   ibverbs-utils"
  "ib_write_bw                   perftest"
)
needed=(
  "${build[@]}"
  "${guest[@]}"
  "dig        bind9-dnsutils"
  "kdig       knot-dnsutils"
  "drill      ldnsutils"
  "unbound    unbound"
  "openssl    openssl"
  "musl-gcc   musl-tools"
  "javac      default-jdk-headless"
  "knotd      knot"
  "nsd        nsd"
  "fstrm_capture fstrm-bin"
  "dnstap-ldns dnstap-ldns"
  "g++        g++"
  "shellcheck shellcheck"
  "containerd containerd"
  "runc       runc"
  "iptables   iptables"
  "conntrack  conntrack"
  "chromium   chromium"
  "iperf3       iperf3"
  "ucx_perftest ucx-utils"
  "pip3         python3-pip"
)

case "${1:-}" in
  build) needed=("${build[@]}") ;;
  bench-client) needed=("iperf3 iperf3" "ucx_perftest ucx-utils") ;;
  bench-dns) needed=("knotd knot" "nsd nsd" "taskset util-linux") ;;
  bench-rdma) needed=("${guest[@]}" "ucx_perftest ucx-utils") ;;
  shellcheck) needed=("shellcheck shellcheck") ;;
esac

missing=()
for line in "${needed[@]}"; do
  read -r command package <<<"$line"
  if [[ $command == /* ]]; then
    compgen -G "$command" >/dev/null
  else
    command -v "$command" >/dev/null
  fi || missing+=("$package")
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
# Packages of daemons start them, but the tests start their own (invoke-rc.d(8), policy-rc.d).
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
  # shellcheck disable=SC2016 # the script's own $1
  printf '%s\n' '#!/bin/sh' 'case $1 in knot* | nsd* | unbound*) exit 101 ;; esac' |
    "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 755 "$policy"
fi
"${as_root[@]}" apt-get update >&2
"${as_root[@]}" "${install[@]}" >&2
