#!/usr/bin/env bash
# Builds the kernel and initramfs of the guest of the RDMA tests (testing/src/programs/guest.rs), unless they are built already: the
# distribution's kernel, and its modules for soft-RoCE. All other files of the guest are those of the host. Prints the folder of `kernel`
# and `initramfs`.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Debian installs depmod in sbin, which an ordinary user's PATH lacks.
PATH=$PATH:/usr/sbin:/sbin

# Packages that depend on a kernel, the best first. In Debian's 6.1, soft-RoCE has fewer features than in 6.12, and there is no udmabuf;
# the cloud image has no soft-RoCE.
kernels=(linux-image-6.12-amd64 linux-image-amd64 linux-image-generic)

# In the order of loading; dependencies are added. soft-RoCE requests its checksum modules by name, so no dependency names them; newer
# kernels need no module for them.
modules=(virtio_pci 9p 9pnet_virtio overlay rdma_rxe ib_uverbs rdma_ucm veth macvlan dummy)
optional=(crc32_generic crc32c_generic crc32_pclmul)

# Prints the guest's init. It runs the scripts of the shared folder one after the other, each from the state after boot. A script sees the
# host's root through an overlay, so its writes end with it, as do its processes, mounts and links. /run is empty, because the host's has
# the sockets of its daemons. The shared folder is not cached, so the host sees a script's output at once.
init() {
  cat <<'INIT'
#!/bin/busybox sh
set -e

# In namespaces of its own for mounts and processes.
if [ "$1" ]; then
  busybox mount -t tmpfs tmpfs /memory
  busybox mkdir /memory/upper /memory/work
  busybox mount -t overlay -o lowerdir=/machine,upperdir=/memory/upper,workdir=/memory/work overlay /root
  busybox mount -t proc proc /root/proc
  busybox mount -t sysfs sysfs /root/sys
  busybox mount -t devtmpfs devtmpfs /root/dev
  busybox mkdir -p /root/dev/shm /root/dev/pts
  busybox mount -t tmpfs tmpfs /root/dev/shm
  busybox mount -t devpts devpts /root/dev/pts
  busybox mount -t tmpfs -o mode=755 tmpfs /root/run
  busybox mkdir /root/run/guest /root/run/lock
  busybox mount -o bind "/guest/$1" /root/run/guest
  cd /root
  busybox mount -o move . /
  exec busybox chroot . /bin/sh -c '
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
    cd /
    guest=/run/guest
    sh -e $guest/script </dev/null >>$guest/output 2>&1
    echo $? >$guest/status.new
    mv $guest/status.new $guest/status
  '
fi

# Loads the modules that a script removed, and deletes the links that it left.
renew() {
  for module in /modules/*; do
    name=${module##*/???-}
    [ -e "/sys/module/${name%.ko}" ] || busybox insmod "$module"
  done
  for link in /sys/class/net/*; do
    link=${link##*/}
    [ "$link" = lo ] || ! [ -e "/sys/class/net/$link" ] || busybox ip link delete "$link"
  done
}

busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
renew
busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro machine /machine
busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none guest /guest
busybox ip link set lo up
: >/guest/booted
number=1
while :; do
  if [ -e "/guest/$number/script" ]; then
    renew
    busybox unshare -m -p -f /init "$number"
    number=$((number + 1))
  else
    busybox sleep 0.1
  fi
done
INIT
}

say() {
  echo "tests/tools/guest.sh: $*" >&2
}

fail() {
  say "$*"
  exit 1
}

# Sets `packages` to those of the newest kernel that apt has: its image, and its modules if they have packages of their own.
find_packages() {
  local kernel found
  for kernel in "${kernels[@]}"; do
    found=$(parts "$kernel")
    [[ -n $found ]] || continue
    # The image package may depend on a package of modules.
    mapfile -t packages < <({ echo "$found"; parts "$found"; } | sort -u)
    return
  done
  return 1
}

# Prints the packages with a kernel or its modules among the dependencies.
parts() {
  local names
  mapfile -t names <<<"$1"
  { apt-cache depends -i "${names[@]}" 2>/dev/null || true; } \
    | sed -nE 's/^ *\|?Depends: (linux-(image|modules|modules-extra)-[0-9].*)$/\1/p' | sort -u
}

update() {
  local as_root=()
  ((EUID == 0)) || as_root=(sudo -n)
  "${as_root[@]}" apt-get update >&2
}

[[ $(uname -m) == x86_64 ]] || fail "the guest needs an x86-64 host"
for command in apt-get apt-cache dpkg-deb depmod modprobe busybox cpio xz zstd; do
  command -v "$command" >/dev/null || fail "$command is missing: run tests/tools/packages.sh (it needs Debian or Ubuntu)"
done
ldd "$(command -v busybox)" >/dev/null 2>&1 && fail "busybox is not static: install busybox-static"
find_packages || { update && find_packages; } || fail "apt has none of ${kernels[*]}: run 'apt-get update' as root"

# The folder's name is a hash of all inputs.
versions=$(apt-cache show --no-all-versions "${packages[@]}" | grep -E '^(Package|Version):')
hash=$({ cat "$here/guest.sh"; echo "$versions"; } | sha256sum | cut -c 1-16)
dir=$(realpath -m "${MULTINET_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/multinet/tools}/guest-$hash")

if [[ ! -f $dir/initramfs ]]; then
  mkdir -p "$dir"
  # Two test runs may start at once: the second waits here, and then finds everything built.
  exec 9>"$dir/.lock"
  flock -n 9 || { say "waiting for another build"; flock 9; }
fi

if [[ ! -f $dir/initramfs ]]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT

  say "fetching ${packages[*]}"
  mkdir "$work/packages" "$work/tree"
  fetch() { (cd "$work/packages" && apt-get download "${packages[@]}" >"$work/log" 2>&1); }
  # Old lists have versions that no longer exist.
  fetch || { update && fetch; } || fail "cannot download ${packages[*]}: $(tail -n 1 "$work/log")"
  for package in "$work"/packages/*.deb; do
    dpkg-deb -x "$package" "$work/tree"
  done
  # Newer packages have everything in /usr; another package has the link /lib.
  [[ -e $work/tree/lib ]] || ln -s usr/lib "$work/tree/lib"

  say "building the initramfs"
  release=$(ls "$work/tree/lib/modules")
  depmod -b "$work/tree" "$release"
  root=$work/root
  mkdir -p "$root"/{bin,modules,proc,sys,dev,machine,guest,memory,root}
  init >"$root/init"
  chmod 755 "$root/init"
  cp "$(command -v busybox)" "$root/bin/busybox"

  # Prints a module after its dependencies, as lines of `insmod FILE`. /dev/null replaces the host's configuration.
  plan() { modprobe -C /dev/null -d "$work/tree" -S "$release" --show-depends "$1" 2>"$work/log"; }
  : >"$work/plan"
  for module in "${optional[@]}"; do
    plan "$module" >>"$work/plan" || true
  done
  for module in "${modules[@]}"; do
    plan "$module" >>"$work/plan" || fail "${packages[*]} has no $module: $(tail -n 1 "$work/log")"
  done
  count=100
  while read -r file; do
    name=$(basename "${file%.ko*}")
    # The name in /sys/module.
    target=$root/modules/$((count++))-${name//-/_}.ko
    case $file in
      *.xz) xz -dc "$file" >"$target" ;;
      *.zst) zstd -qdc "$file" >"$target" ;;
      *) cp "$file" "$target" ;;
    esac
  done < <(awk '$1 == "insmod" && !seen[$2]++ { print $2 }' "$work/plan")

  # Renamed after they are complete; the initramfs last, because its existence is checked above.
  cp "$work"/tree/boot/vmlinuz-* "$dir/.kernel"
  (cd "$root" && find . | cpio -o -H newc --quiet -R 0:0) | gzip -1 >"$dir/.initramfs"
  chmod 644 "$dir/.kernel" "$dir/.initramfs"
  mv "$dir/.kernel" "$dir/kernel"
  mv "$dir/.initramfs" "$dir/initramfs"
fi

echo "$dir"
