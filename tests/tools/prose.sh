#!/usr/bin/env bash
# Finds comments and sentences that break a rule of CONTRIBUTING.md, as far as patterns can: prose.sh [PATH…], by default in all Rust
# files and pages.
set -euo pipefail
cd "$(dirname "$0")/../.."
if (($#)); then mapfile -t all < <(git ls-files -- "${@/%//}" "$@" | sort -u); else mapfile -t all < <(git ls-files '*.rs' '*.md'); fi
files=() pages=()
for file in "${all[@]}"; do
  if [[ $file == *.rs ]]; then files+=("$file"); elif [[ $file =~ ^(docs/)?[^/]*\.md$ ]]; then pages+=("$file"); fi
done
status=0
find_bad() { # find_bad RULE PATTERN
  local found
  ((${#files[@]})) || return 0
  if found=$(grep -nHE -- "$2" "${files[@]}"); then
    echo "$1:" >&2
    echo "$found" >&2
    status=1
  fi
}
find_bad 'a doc comment begins with a verb, or with a noun phrase that names the thing' \
  '^ *(///|//!) (What|Who|Whom|Whose|Whoever|Whatever|That which)\b'
find_bad 'name the actor' '^ *//.*\b([Nn]obody|[Ss]omebody)\b'
if ((${#files[@]})) && found=$(LC_ALL=C.UTF-8 grep -nHE '^.{101,}$' -- "${files[@]}" | grep -E '^[^:]*:[0-9]+: *//'); then
  echo 'comments wrap at 100 columns:' >&2
  echo "$found" >&2
  status=1
fi
# A cell of a table, a list item and a paragraph are texts of their own. Code is one word; blocks and generated tables do not count.
if ((${#pages[@]})) && ! awk '
  function check(    count, words, i, length_, sentence) {
    gsub(/\]\([^)]*\)/, "]", text); gsub(/`[^`]*`/, "CODE", text)
    count = split(text, words, " "); text = ""
    for (i = 1; i <= count; i++) {
      sentence = sentence " " words[i]; length_++
      if (i < count && !(words[i] ~ /[.!?:]["”)*]*$/ && words[i + 1] ~ /^["“(*[]*[A-Z0-9]/)) continue
      if (length_ > 30) { print page ":" begun ": " length_ " words:" sentence; bad = 1 }
      sentence = ""; length_ = 0
    }
  }
  FNR == 1 { check(); is_code = is_made = 0 }
  /^ *```/ { check(); is_code = !is_code; next }
  /^<!-- .*(: begin| of [a-z-]+) -->$/ { check(); is_made = 1 }
  /^<!-- .*(: end|end of [a-z]+) -->$/ { is_made = 0; next }
  is_code || is_made { next }
  /^ *$|^#|^\||^ *([-*]|[0-9]+\.) / { check() }
  text == "" { page = FILENAME; begun = FNR; sub(/^ *([-*]|[0-9]+\.) /, "") }
  /^\|/ { cells = split($0, row, "|"); for (c = 1; c <= cells; c++) { text = row[c]; check() } next }
  { text = text " " $0 }
  END { check(); exit bad }
' "${pages[@]}" >&2; then
  echo 'sentences of the documentation have at most 30 words' >&2
  status=1
fi
exit $status
