#!/usr/bin/env bash
# Writes tables of measurements into docs/benchmarks.md, and the summary at its top anew.
#   bench-page.sh TARGET <PART   replaces the lines between the markers of a target with standard input
#   bench-page.sh --summary      writes the summary only
#   bench-page.sh --check        compares it with the tables
set -euo pipefail
cd "$(dirname "$0")/.."
page=docs/benchmarks.md

# Prints the page with the lines between two markers replaced: replaced MARKER TEXT <PAGE
replaced() {
  local begin="<!-- $1: begin -->" end="<!-- $1: end -->" marker text
  text=$(cat)
  for marker in "$begin" "$end"; do
    grep -qxF -- "$marker" <<<"$text" || { echo "$page has no line $marker" >&2; return 1; }
  done
  sed "/^$begin\$/q" <<<"$text"
  printf '\n%s\n\n' "$2"
  sed -n "/^$end\$/,\$p" <<<"$text"
}

# Prints the summary of a page. Each ratio of it is: row of the summary; which ratios are better; the other program, and the case;
# then target, table, beginning of the row, and column where it stands. A ratio that the page does not have is left out.
summary() {
  awk -F ';' '
    FNR == NR { ratios[++count] = $0; next }
    /^<!-- make bench-.*: begin -->$/ { target = $0; gsub(/^<!-- make |: begin -->$/, "", target) }
    /^<!-- make .*: end -->$/ { target = "" }
    /^### / { title = substr($0, 5); width = 0 }
    /^\|/ && target {
      row = $0; gsub(/^\| *| *\|$/, "", row); n = split(row, cells, / *\| */)
      if (!width) { width = n; for (i = 1; i <= n; i++) columns[i] = cells[i]; next }
      for (r = 1; r <= count; r++) {
        split(ratios[r], part, ";")
        if (r in value || part[4] != target || part[5] != title || index(row, part[6]) != 1) continue
        for (i = n; i; i--) if (columns[i] == part[7]) figure = cells[i]
        sub(/ .*/, "", figure)
        if (figure + 0 > 0) value[r] = figure
      }
    }
    END {
      print "| multinet over the other program | ratios; **bold**: multinet is behind |"; print "|---|---|"
      for (r = 1; r <= count; r++) {
        split(ratios[r], part, ";")
        if (part[1] != label) { if (line) print "| " label ", " better " is better | " line " |"; line = "" }
        label = part[1]; better = part[2]
        if (!(r in value)) continue
        behind = better == "less" ? value[r] > 1 : value[r] < 1
        line = line (line ? ", " : "") part[3] " " (behind ? "**" value[r] "**" : value[r])
      }
      if (line) print "| " label ", " better " is better | " line " |"
    }
  ' - "$page" <<'RATIOS'
DNS, CPU per answer over UDP;less;Knot;bench-dns;Ratios;CPU per UDP answer, mixed, over Knot;measured
DNS, CPU per answer over UDP;less;NSD;bench-dns;Ratios;CPU per UDP answer, mixed, over NSD;measured
DNS, CPU per answer over UDP;less;CoreDNS;bench-dns;Ratios;CPU per UDP answer, mixed, over CoreDNS;measured
the same, each query from a port of its own;less;Knot;bench-dns;Ratios;CPU per UDP answer, A, each from a port of its own, over Knot;measured
the same, each query from a port of its own;less;NSD;bench-dns;Ratios;CPU per UDP answer, A, each from a port of its own, over NSD;measured
the same, each query from a port of its own;less;CoreDNS;bench-dns;Ratios;CPU per UDP answer, A, each from a port of its own, over CoreDNS;measured
DNS, CPU per answer over TCP;less;Knot;bench-dns;Ratios;CPU per pipelined TCP answer, over Knot;measured
DNS, CPU per answer over TCP;less;NSD;bench-dns;Ratios;CPU per pipelined TCP answer, over NSD;measured
DNS, CPU per answer over TCP;less;CoreDNS;bench-dns;Ratios;CPU per pipelined TCP answer, over CoreDNS;measured
DNS, p99 latency;less;Knot at half of saturation;bench-dns;Ratios;p99 latency at half of saturation, over Knot;measured
DNS, p99 latency;less;Knot at twice of it;bench-dns;Ratios;p99 latency of what is answered, at twice of saturation, over Knot;measured
DNS, memory with 100,000 endpoints;less;CoreDNS;bench-dns;Ratios;RSS with 100000 endpoints, over CoreDNS;measured
from pod to answer, median;less;Kubernetes' own for one change;bench-programming;From pod to answer;single, readiness | 18600;ours / core p50
from pod to answer, median;less;for changes back to back;bench-programming;From pod to answer;back to back | 18600;ours / core p50
from pod to answer, median;less;for bursts;bench-programming;From pod to answer;burst | 18600;ours / core p50
controller with 10,000 pods;less;Kubernetes' own in time of a cold start;bench-programming;10000 pods in 100 services;cold start, seconds;ours / core
controller with 10,000 pods;less;in CPU;bench-programming;10000 pods in 100 services;CPU seconds;ours / core
controller with 10,000 pods;less;in memory;bench-programming;10000 pods in 100 services;peak memory, MiB;ours / core
frames over TCP, bandwidth with 1 MiB;more;iperf3;bench-client;Bandwidth;1048576 ;/ iperf3
frames over TCP, bandwidth with 1 MiB;more;UCX;bench-client;Bandwidth;1048576 ;/ UCX
frames over TCP, round trip of 64 bytes;less;a tokio echo;bench-client;Round trip of 64 bytes;a frame there, a frame back;/ echo
frames over TCP, round trip of 64 bytes;less;UCX, which polls,;bench-client;Round trip of 64 bytes;a frame there, a frame back;/ UCX
fetches over TCP, bandwidth with 1 MiB;more;a frame that is sent;bench-client;Bandwidth of fetches;1048576 ;/ send
fetches over TCP, bandwidth with 1 MiB;more;UCX get;bench-client;Bandwidth of fetches;1048576 ;/ UCX get
frames by RDMA, rate;more;ib_write_bw with 1 MiB;bench-rdma;Bandwidth;1048576 | 1;frames / ib_write_bw
frames by RDMA, rate;more;with 2 bytes;bench-rdma;Small messages;2 | 1;frames / ib_write_bw
frames by RDMA, latency of 64 bytes, polling;less;ib_write_lat;bench-rdma;Latency;64 ;/ ib_write_lat
RATIOS
}

new=$(mktemp)
trap 'rm -f "$new"' EXIT
if [ "$1" = --check ]; then
  replaced summary "$(summary)" <"$page" >"$new"
  diff -u "$page" "$new" || { echo "the summary of $page differs from its tables: run tests/bench-page.sh --summary" >&2; exit 1; }
  exit
fi
if [ "$1" != --summary ]; then
  part=$(cat)
  [ -n "$part" ] || { echo "bench-page.sh: standard input is empty" >&2; exit 1; }
  replaced "make $1" "$part" <"$page" >"$new"
  cat "$new" >"$page"
fi
replaced summary "$(summary)" <"$page" >"$new"
cat "$new" >"$page"
