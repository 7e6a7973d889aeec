#!/usr/bin/env bash
# usage: scripts/steps.sh BEFORE CYCLES NOW CYCLES > docs/performance-steps.svg
#
# Draws where the cycles of a connection go, step by step, before a change and now, beside what the parts cost by
# themselves (the floor). BEFORE and NOW are files of callgrind, of the program of `bench cps --open 300 --seconds 4`
# with --collect-atstart=no --toggle-collect='*CoreTask*Task>::run'; CYCLES is what
# `bench cps` says of the same program. The instructions of each step go to standard error, as rows of a table.
set -euo pipefail
[ $# -eq 4 ] || {
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

# Prints the instructions of each step for one connection, in the order of the picture, and their sum.
steps() {
    awk '
        # Names are written once and then known by their number.
        function name(token) {
            if (match(token, /^\([0-9]+\)/)) {
                key = substr(token, 1, RLENGTH)
                if (length(token) > RLENGTH) names[key] = substr(token, RLENGTH + 2)
                return names[key]
            }
            return token
        }
        function step_of(fn) {
            if (fn ~ /siphasher|CookieJar::mac|sip::|IsnGenerator/) return 4
            if (fn ~ /TcpOptions::parse/) return 5
            if (fn ~ /send::.*::emit$|emit_on$|emit_into|send_held|Ipv4Header|sum_words|sum_at|memcpy/) return 3
            if (fn ~ /::forward$|while_spliced|write_pair|Addresses::source/) return 2
            if (fn ~ /handle_all|handle_each|handle_batch|handle_unbound|::look_up$|::verify$|is_intact|is_checksum_valid|sums_up|CoreTask/) return 1
            if (fn ~ /operators|EnginePort|ring_|^0x/) return 1
            return 6
        }
        /^fn=/ { fn = name(substr($0, 4)); step = step_of(fn); next }
        /^cfn=/ { callee = name(substr($0, 5)); next }
        # Each packet that comes in has its IPv4 header summed up once.
        /^calls=/ { if (callee ~ /sums_up/) { split(substr($0, 7), count, " "); packets += count[1] } skip = 1; next }
        /^[0-9+*-]/ { if (skip) { skip = 0; next } cost[step] += $NF }
        END {
            if (!packets) {
                print FILENAME ": no packet came in" > "/dev/stderr"
                exit 1
            }
            for (step = 1; step <= 6; step++) {
                printf "%.0f ", cost[step] * 7 / packets
                sum += cost[step] * 7 / packets
            }
            printf "%.0f\n", sum
        }' "$1"
}

before=$(steps "$1")
now=$(steps "$3")
awk -v before="$before" -v before_cycles="$2" -v now="$now" -v now_cycles="$4" '
    function bar(y, cycles, colour) {
        printf "<rect x=\"300\" y=\"%d\" width=\"%.1f\" height=\"12\" fill=\"%s\"/>", y, cycles * scale, colour
        printf "<text x=\"%.1f\" y=\"%d\">%.0f</text>\n", 306 + cycles * scale, y + 10, cycles
    }
    function key(x, colour, text) {
        printf "<rect x=\"%d\" y=\"34\" width=\"12\" height=\"12\" fill=\"%s\"/>", x, colour
        printf "<text x=\"%d\" y=\"44\">%s</text>\n", x + 18, text
    }
    BEGIN {
        split("graph, reading, checksums, look-ups|passing on: 3 packets|frames of our own: 4|SipHash: 3|options: 6|actions, timer, port, table, rest", title, "|")
        # Cycles of the parts by themselves, by `bench core`, `bench wire` and `bench native`, and the budget of crates/splice/src/lib.rs for actions.
        split("427 136 145 109 22 250", floor, " ")
        n = split(before, b, " ") - 1
        split(now, a, " ")
        scale = 0.34
        printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"800\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n", 66 + n * 56
        print "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
        print "<text x=\"20\" y=\"22\" font-size=\"15\">Cycles of a connection by step (instructions, scaled to the measured sum)</text>"
        key(300, "#b0b0b0", "floor: 1089"); key(430, "#9ec5e8", "before: " before_cycles); key(560, "#1f6fb4", "now: " now_cycles)
        for (step = 1; step <= n; step++) {
            y = 62 + (step - 1) * 56
            printf "<text x=\"290\" y=\"%d\" text-anchor=\"end\">%s</text>\n", y + 24, title[step]
            bar(y, floor[step], "#b0b0b0")
            bar(y + 14, b[step] * before_cycles / b[n + 1], "#9ec5e8")
            bar(y + 28, a[step] * now_cycles / a[n + 1], "#1f6fb4")
            printf "| %s | %d | %d | %d |\n", title[step], floor[step] * 5.5, b[step], a[step] > "/dev/stderr"
        }
        printf "| all | – | %d | %d |\n", b[n + 1], a[n + 1] > "/dev/stderr"
        print "</svg>"
    }'
