#!/usr/bin/env bash
# Downloads NCCL's wheel (351 MB) into the user's cache folder, unless it is there, and prints the path of libnccl.so.2.
set -euo pipefail
folder=${XDG_CACHE_HOME:-$HOME/.cache}/multinet/nccl
library=$folder/nvidia/nccl/lib/libnccl.so.2
if ! [ -e "$library" ]; then
  mkdir -p "$folder"
  python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$folder" 'nvidia-nccl-cu12>=2.28' >&2
  python3 -m zipfile -e "$folder"/nvidia_nccl_cu12-*.whl "$folder"
  rm "$folder"/*.whl
fi
echo "$library"
