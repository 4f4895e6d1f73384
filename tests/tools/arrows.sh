#!/usr/bin/env bash
# Finds cycles among the modules of a folder. In a lib.rs with `// In the order of the arrows`, it also finds modules that use one
# declared after them. A module counts with all modules below it; uses between parents and children do not count.
#   arrows.sh [--print]   with --print, only prints each use and its files
set -euo pipefail
cd "$(dirname "$0")/../.."

# Prints "FOLDER USER USED FILE" for each use of one module by another of the same folder.
arrows() {
  local sources=$1
  # shellcheck disable=SC2016 # the dollars are awk's
  find "$sources" -name '*.rs' ! -path '*/tests/*' ! -name tests.rs -print0 | sort -z | xargs -0 awk -v sources="$sources" '
    # Records a use of the module path `used` (parts joined by ::) by the file.
    function note(used, parts, mine, n, m, i, folder) {
      n = split(used, parts, "::"); m = split(module, mine, "::"); folder = ""
      for (i = 1; i <= n && i <= m; i++) {
        if (parts[i] != mine[i]) {
          if ((folder "::" parts[i]) in modules) uses[folder " " mine[i] " " parts[i]] = FILENAME
          return
        }
        folder = folder "::" parts[i]
      }
    }
    # Resolves one path that begins with crate or super.
    function resolve(path, above) {
      if (sub(/^crate::/, "", path)) { note(path); return }
      above = module
      while (sub(/^super::/, "", path)) { if (!sub(/::[^:]*$/, "", above)) above = "" }
      note(above == "" ? path : above "::" path)
    }
    # Resolves a path that may end in one list in braces.
    function expand(path, head, list, items, n, i) {
      if (!match(path, /\{/)) { resolve(path); return }
      head = substr(path, 1, RSTART - 1); list = substr(path, RSTART + 1); gsub(/[{}]/, ",", list)
      n = split(list, items, /,[ ]*/)
      for (i = 1; i <= n; i++) if (items[i] != "") resolve(head items[i])
    }
    FNR == 1 {
      module = substr(FILENAME, length(sources) + 2); sub(/\.rs$/, "", module); sub(/(^|\/)(mod|lib|main)$/, "", module)
      gsub(/\//, "::", module); whole = module; prefix = ""
      is_test = 0; n = split(module, parts, "::")
      for (i = 1; i <= n; i++) { prefix = prefix "::" parts[i]; modules[prefix] = 1 }
      files[++count] = FILENAME; of[FILENAME] = module
    }
    /^#\[cfg\(test\)\]/ { is_test = 1 }
    !is_test && !/^[ ]*\/\// { text[FILENAME] = text[FILENAME] $0 "\n" }
    END {
      for (f = 1; f <= count; f++) {
        FILENAME = files[f]; module = of[FILENAME]; rest = text[FILENAME]; gsub(/\n[ ]*/, " ", rest)
        while (match(rest, /(crate|super)::[a-z_:]*(\{[^;]*\})?/)) {
          path = substr(rest, RSTART, RLENGTH); rest = substr(rest, RSTART + RLENGTH)
          if (module != "") expand(path)
        }
      }
      for (use in uses) print use, uses[use]
    }' | sort
}

status=0
for sources in */src client-lib/*/src bindings/*/src; do
  all=$(arrows "$sources" | sed 's/^ /:: /')
  if [ "${1:-}" = --print ]; then
    while read -r arrow; do echo "$sources $arrow"; done <<<"$all"
    continue
  fi
  while read -r folder; do
    pairs=$(awk -v folder="$folder" '$1 == folder {print $2, $3}' <<<"$all")
    if [ "$folder" = :: ] && grep -qs 'In the order of the arrows' "$sources/lib.rs"; then
      pairs+=$'\n'$(awk '/^(pub )?mod [a-z_]+;/ {sub(/^pub /, ""); sub(/;/, "", $2); if (last != "") print $2, last; last = $2}' "$sources/lib.rs")
    fi
    if ! found=$(tsort <<<"$pairs" 2>&1 >/dev/null); then
      echo "$sources${folder//:://}: these modules use each other in a cycle, or against the order of lib.rs:" >&2
      sed -n 's/^tsort: \(-: \)\?/  /p' <<<"$found" | grep -v loop >&2
      status=1
    fi
  done < <(cut -d' ' -f1 <<<"$all" | sort -u)
done
exit $status
