#!/usr/bin/env bash
# Compares the tables of limits in docs/reference.md with the files that define the limits. limits.sh [--write]; with
# --write it writes the tables instead. A test compares the tables of flags there, which have the defaults of flags.
set -euo pipefail
cd "$(dirname "$0")/../.."
page=docs/reference.md

# Prints the table of a limits.rs.
table() {
  awk '
    # Formats a product of numbers.
    function product(text, factors, n, i, result) {
      n = split(text, factors, / \* /); result = 1
      for (i = 1; i <= n; i++) { gsub(/_/, "", factors[i]); result *= factors[i] }
      return result
    }
    function value(text, parts) {
      if (match(text, /^Duration::from_(secs|millis|micros)\(/)) {
        parts = text; sub(/^[^(]*\(/, "", parts); sub(/\)$/, "", parts)
        return product(parts) (text ~ /_secs/ ? " s" : text ~ /_millis/ ? " ms" : " µs")
      }
      if (text ~ / << 10$/) { sub(/ << 10$/, " KiB", text); return text }
      if (text ~ / << 20$/) { sub(/ << 20$/, " MiB", text); return text }
      if (text ~ /^"/) { gsub(/"/, "", text); return "`" text "`" }
      return product(text)
    }
    BEGIN { print "| limit | value | about |"; print "|---|---|---|" }
    { sub(/pub\(crate\)/, "pub") }
    /^pub mod / { module = $3 }
    /^    \/\/\/ / { about = about (about == "" ? "" : " ") substr($0, 9) }
    /^    pub const / && module == "flags" { about = ""; next }
    /^    pub const / {
      name = $3; sub(/:$/, "", name); text = $0; sub(/^[^=]*= /, "", text); sub(/;$/, "", text)
      gsub(/\[`/, "`", about); gsub(/`\]/, "`", about)
      print "| `" module "::" name "` | " value(text) " | " about " |"; about = ""
    }
  ' "$1"
}

# Prints the page with new tables.
page_with_tables() {
  awk -v dns="$(table dns-server/src/limits.rs)" -v controller="$(table controller/src/limits.rs)" \
    -v runtime="$(table runtime/src/limits.rs)" -v publish="$(table publish/src/limits.rs)" \
    -v numaflow="$(table numaflow/src/limits.rs)" '
    BEGIN {
      tables["dns-server"] = dns; tables["controller"] = controller; tables["runtime"] = runtime
      tables["publish"] = publish; tables["numaflow"] = numaflow
    }
    /^<!-- end of limits -->$/ { is_table = 0 }
    !is_table
    match($0, /^<!-- limits of [a-z-]+ -->$/) { print tables[$4]; is_table = 1 }
  ' "$page"
}

if [ "${1:-}" = --write ]; then
  text=$(page_with_tables)
  printf '%s\n' "$text" >"$page"
else
  diff -u "$page" <(page_with_tables) || {
    echo "$page lists other limits than the code has: run tests/tools/limits.sh --write" >&2
    exit 1
  }
fi
