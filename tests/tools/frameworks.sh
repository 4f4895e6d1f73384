#!/usr/bin/env bash
# Downloads the programs of tests/frameworks, unless they are there already: PyTorch with gloo and torchrun, Open MPI, MPICH, Mooncake,
# and the parsers of hostfiles of DeepSpeed, Horovod and Ray. PyTorch comes from the distribution's packages, which are unpacked, not
# installed, and the others from PyPI, with the checksums in frameworks/*.txt. Prints the folder; bin/ in it has the programs.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=/dev/null
hash=$(cd "$here" && { . /etc/os-release && echo "$ID $VERSION_ID"; sha256sum frameworks.sh frameworks/*.txt; } | sha256sum | cut -c 1-16)
dir=$(realpath -m "${MULTINET_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/multinet/tools}/frameworks-$hash")

# Unpacks python3-torch and the packages that it needs and this machine lacks.
torch() {
  local debs=$1/debs root=$1/torch packages
  mkdir -p "$debs" "$root"
  packages=$(apt-get install --simulate --no-install-recommends -qq python3-torch | awk '$1 == "Inst" { print $2 }')
  # shellcheck disable=SC2086 # a list of names
  (cd "$debs" && apt-get download -qq $packages)
  echo "tests/tools: python3-torch: $(find "$debs" -name '*.deb' | wc -l) packages of $(du -sm "$debs" | cut -f 1) MB" >&2
  find "$debs" -name '*.deb' -exec dpkg -x {} "$root" \;
  rm -rf "$debs"
}

# Writes a program: script FILE, with its text as input.
script() {
  { echo '#!/bin/sh' && cat; } >"$1"
  chmod 755 "$1"
}

wheels() {
  local new=$1 python
  python=$(python3 -c 'import sys; print(sys.executable)')
  for set in wheels mpich; do
    "$python" -m pip install -q --root-user-action ignore --no-warn-script-location --no-deps --only-binary :all: --require-hashes \
      --prefix "$new/$set" -r "$here/frameworks/$set.txt"
    echo "tests/tools: $set: $(du -sm "$new/$set" | cut -f 1) MB" >&2
  done
  # Their other files need packages of gigabytes.
  "$python" -m pip download -q --no-deps --no-binary :all: --require-hashes -d "$new/sources" -r "$here/frameworks/sources.txt"
  "$python" -m pip download -q --no-deps --only-binary :all: --python-version 3.11 --platform manylinux2014_x86_64 --require-hashes \
    -d "$new/sources" -r "$here/frameworks/ray.txt"
  mkdir "$new/parsers"
  tar -xzO --wildcards -f "$new"/sources/deepspeed-*.tar.gz '*/deepspeed/launcher/runner.py' >"$new/parsers/deepspeed.py"
  tar -xzO --wildcards -f "$new"/sources/horovod-*.tar.gz '*/horovod/runner/common/util/hosts.py' >"$new/parsers/horovod.py"
  "$python" -c 'import sys, zipfile; sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read(sys.argv[2]))' \
    "$new"/sources/ray-*.whl ray/autoscaler/_private/local/config.py >"$new/parsers/ray.py"
  rm -rf "$new/sources"
}

# The programs know where their libraries are, so that callers need no variables.
programs() {
  local new=$1 python lib packages
  python=$(python3 -c 'import sys; print(sys.executable)')
  lib=$dir/torch/usr/lib
  mkdir "$new/bin"
  script "$new/bin/torch-python" <<END
export PYTHONPATH=$lib/python3/dist-packages
export LD_LIBRARY_PATH=$lib:$lib/$(uname -m)-linux-gnu:$lib/$(uname -m)-linux-gnu/blas:$lib/$(uname -m)-linux-gnu/lapack
exec /usr/bin/python3 "\$@"
END
  script "$new/bin/torchrun" <<END
exec $dir/bin/torch-python -m torch.distributed.run "\$@"
END
  packages=$(cd "$new" && find wheels -name '*-packages' -print -quit)
  script "$new/bin/wheels-python" <<END
export PYTHONPATH=$dir/$packages LD_LIBRARY_PATH=$dir/wheels/lib
exec $python "\$@"
END
  script "$new/bin/mpirun" <<END
exec $dir/wheels/bin/mpirun "\$@"
END
  script "$new/bin/mpiexec.hydra" <<END
exec $dir/mpich/bin/mpiexec.hydra "\$@"
END
}

if [[ ! -d $dir ]]; then
  SECONDS=0
  echo "tests/tools: downloading frameworks" >&2
  if ! apt-cache show python3-torch >/dev/null 2>&1; then
    as_root=(sudo -n)
    if ((EUID == 0)); then as_root=(); fi
    "${as_root[@]}" apt-get update -qq >&2
  fi
  mkdir -p "$(dirname "$dir")"
  # Renamed when it is complete, so that an interrupted run does not look like a finished one.
  new=$(mktemp -d "$dir.XXXXXX")
  trap 'rm -rf "$new"' EXIT
  torch "$new"
  wheels "$new"
  programs "$new"
  chmod 755 "$new"
  # Of two runs at once, one is first.
  mv -T "$new" "$dir" 2>/dev/null || [[ -d $dir ]]
  echo "tests/tools: frameworks: $(du -sm "$dir" | cut -f 1) MB in $SECONDS s" >&2
fi

echo "$dir"
