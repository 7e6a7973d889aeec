#!/usr/bin/env bash
# Draws docs/binding.svg: one connection through a proxy that terminates TCP, and through one that binds late.
#     scripts/draw-binding.sh >docs/binding.svg
set -euo pipefail

WIDTH=860 HEIGHT=430
# Where the three time lines of each half stand, and where time begins.
LEFT=(70 210 350) RIGHT=(510 650 790) TOP=86
STEP=26

text() { printf '<text x="%s" y="%s" class="%s">%s</text>\n' "$1" "$2" "$3" "$4"; }

line() { printf '<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>\n' "$@"; }

# heads TITLE X…: the title of a half, and its three time lines.
heads() {
    local title=$1 names=(client proxy server) i
    shift
    text "$2" 26 title "$title"
    for i in 0 1 2; do
        local x=$((i + 1))
        text "${!x}" 58 name "${names[i]}"
        line "${!x}" 66 "${!x}" $((HEIGHT - 40)) time
    done
}

# arrow FROM TO ROW CLASS LABEL
arrow() {
    local y=$((TOP + $3 * STEP)) slant=8
    printf '<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s" marker-end="url(#head)"/>\n' "$1" "$y" "$2" $((y + slant)) "$4"
    text $((($1 + $2) / 2)) $((y - 2)) label "$5"
}

# box X ROW ROWS CLASS: what the proxy holds, on its time line.
box() {
    printf '<rect x="%s" y="%s" width="14" height="%s" class="%s"/>\n' $(($1 - 7)) $((TOP + $2 * STEP)) $(($3 * STEP)) "$4"
}

terminating() {
    local c=${LEFT[0]} p=${LEFT[1]} s=${LEFT[2]}
    heads "a proxy that terminates TCP" "${LEFT[@]}"
    box "$p" 0 11 held
    arrow "$c" "$p" 0 own "SYN"
    arrow "$p" "$c" 1 own "SYN-ACK"
    arrow "$c" "$p" 2 own "request"
    arrow "$p" "$c" 3 own "ACK"
    arrow "$p" "$s" 3 own "SYN"
    arrow "$s" "$p" 4 own "SYN-ACK"
    arrow "$p" "$s" 5 own "request"
    arrow "$s" "$p" 6 own "ACK"
    arrow "$s" "$p" 7 own "answer"
    arrow "$p" "$s" 8 own "ACK"
    arrow "$p" "$c" 8 own "answer"
    arrow "$c" "$p" 9 own "ACK"
    text "$p" $((HEIGHT - 18)) note "two connections: every byte is received, acknowledged,"
    text "$p" $((HEIGHT - 4)) note "copied and sent again, for as long as they last"
}

binding() {
    local c=${RIGHT[0]} p=${RIGHT[1]} s=${RIGHT[2]}
    heads "delayed binding" "${RIGHT[@]}"
    box "$p" 2 3 held
    arrow "$c" "$p" 0 own "SYN"
    arrow "$p" "$c" 1 own "SYN-ACK (a cookie)"
    arrow "$c" "$p" 2 own "request"
    arrow "$p" "$s" 3 own "SYN"
    arrow "$s" "$p" 4 own "SYN-ACK"
    arrow "$p" "$s" 5 own "request"
    arrow "$s" "$c" 6 through "answer, ACK"
    arrow "$c" "$s" 7 through "ACK"
    arrow "$c" "$s" 8 through "bytes"
    arrow "$s" "$c" 9 through "bytes, ACK"
    text "$p" $((HEIGHT - 18)) note "one connection: once the server is chosen, packets pass,"
    text "$p" $((HEIGHT - 4)) note "rewritten; both ends acknowledge each other"
}

cat <<SVG
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 $WIDTH $HEIGHT" font-family="sans-serif" font-size="12" text-anchor="middle">
<title>One connection through a terminating proxy and with delayed binding</title>
<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#345"/></marker></defs>
<style>
.title{font-size:16px;font-weight:bold} .name{font-weight:bold} .note{fill:#555} .label{font-size:11px}
.time{stroke:#bbb;stroke-width:2} .own{stroke:#345;stroke-width:1.5} .through{stroke:#2a7;stroke-width:2.5} .held{fill:#fc8;stroke:#a60}
</style>
<rect width="$WIDTH" height="$HEIGHT" fill="#fff"/>
SVG
terminating
binding
printf '</svg>\n'
