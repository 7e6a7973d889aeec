#!/usr/bin/env bash
# Takes the manual's pictures anew, of a running demo: docs/page-*.png in Chromium, docs/top.svg in tmux, docs/capture.svg by
# tshark. Each says which columns it shows, and tests hold that against the programs (tests/documented, src/main/top, tests/rig/page.rs).
# Needs root; packages that are missing are installed. `./build.sh clean` takes down what is left if it is killed.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/packages.sh

PREFIX=pedemo
PAGE=http://127.0.0.1:9180/
# The terminal of `top`: all columns of its servers.
COLUMNS_OF_TOP=162 LINES_OF_TOP=32
# The server of the demo that is spoiled, so that there is something to see.
SPOILED=10.77.0.13:80 SPOILED_HOST=three.test SPOILED_NAME=http4-three

inside() { ip netns exec "$PREFIX-$1" "${@:2}"; }

cleanup() {
    [ -z "${ASKS:-}" ] || kill "$ASKS" 2>/dev/null || true
    tmux -S "$FOLDER/tmux" kill-server 2>/dev/null || true
    # What runs in the demo's namespaces ends with them.
    ./prepNet.sh down --prefix "$PREFIX" --quiet || true
    rm -rf "$FOLDER"
}

escape() { sed -e 's/&/\&amp;/g' -e 's/</\&lt;/g' -e 's/>/\&gt;/g'; }

# The server closes with a RST what has half an answer; a capture of that.
take_capture() {
    kill "$(cat "$RIG/nginx-server3/pid")"
    inside servers socat "TCP-LISTEN:${SPOILED##*:},bind=${SPOILED%:*},reuseaddr,fork,linger=0,shut-close" \
        SYSTEM:'read -r line; echo half; sleep 0.1' &
    local resets=$! capture
    sleep 1
    "$ENGINE" ctl --socket "$RIG/control" capture start --server "$SPOILED_NAME" --cause reset --duration 4s --file "$FOLDER/reset.pcapng" &
    capture=$!
    sleep 1
    inside clients curl -4 -s --http0.9 --max-time 2 --output /dev/null "http://$SPOILED_HOST/" || true
    wait "$capture"
    kill "$resets"
}

# The fields of a frame that the picture has, in a line each.
fields_of_frames() {
    HOME=/nonexistent tshark -n -r "$1" -X lua_script:packaging/wireshark/proxyengine.lua -c 24 -T fields -E separator='|' \
        -e frame.number -e frame.time_relative -e proxyengine.leg -e proxyengine.pkt -e proxyengine.kind -e _ws.col.Info -e proxyengine.events \
        -e proxyengine.end 2>/dev/null
}

# draw_capture FILE  tshark's view of a capture, a line for each frame, as SVG.
draw_capture() {
    local step=18 width=1180 lines line parts i class y height
    local columns=(10 50 120 180 240 320 760 1080) heads=("No." "Time" "Leg" "Packet" "Kind" "Info" "Events" "Ended by")
    mapfile -t lines < <(fields_of_frames "$1" | escape)
    [ "${#lines[@]}" -gt 5 ] || die "the capture has ${#lines[@]} frames only"
    height=$((step * (${#lines[@]} + 2)))
    cat <<SVG
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 $width $height" font-family="monospace" font-size="12">
<title>A capture in tshark: both legs of a connection, and what was decided</title>
<style>.head{font-weight:bold}.client{fill:#00c}.server{fill:#060}.own{fill:#70a}.end{fill:#b40;font-weight:bold}</style>
<rect width="$width" height="$height" fill="#fff"/>
SVG
    cell() { printf '<text x="%s" y="%s" class="%s">%s</text>\n' "$@"; }
    for i in "${!columns[@]}"; do
        cell "${columns[i]}" "$step" head "${heads[i]}"
    done
    y=$step
    for line in "${lines[@]}"; do
        y=$((y + step))
        IFS='|' read -r -a parts <<<"$line"
        class=${parts[2]:-}
        [ "${parts[4]:-}" != own ] || class=own
        [ -z "${parts[7]:-}" ] || class=end
        parts[1]=${parts[1]:0:8}
        parts[5]=${parts[5]:0:60}
        parts[6]=${parts[6]:-}
        parts[6]=${parts[6]:0:44}
        for i in "${!columns[@]}"; do
            [ -z "${parts[i]:-}" ] || cell "${columns[i]}" "$y" "$class" "${parts[i]}"
        done
    done
    echo '</svg>'
}

# Requests to all hosts in turn, until it is killed.
ask() {
    local host
    while :; do
        for host in one.test two.test "$SPOILED_HOST"; do
            inside clients curl -s --max-time 2 --output /dev/null "http://$host/" || true
        done
    done
}

# browse WIDTHxHEIGHT SCHEME WHAT  the page as its scripts have made it; Blink counts a dark scheme as 0, a light one as 1. The timers of
# ten seconds are over as soon as nothing else is to be done. As root there is no sandbox; it sees nothing but the engine.
browse() {
    inside engine chromium-headless-shell --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$FOLDER/browser" \
        --window-size="${1/x/,}" --blink-settings=preferredColorScheme="$2" --virtual-time-budget=10000 "$3" "$PAGE" 2>/dev/null
}

# What a document's tables show: the name of each, and its headings, a line for each.
headings() {
    tr '\n' ' ' | grep -o '<section id="[^"]*\|<th[^>]*><button>[^<]*' | sed 's/.*[">]//'
}

# A number of 32 bits as four bytes.
four_bytes() { printf '%b' "$(printf '%08x' "$1" | sed 's/../\\x&/g')"; }

# describe FILE  puts the text that it reads into a PNG, before its end, which has 12 bytes (PNG, ISO 15948, 11.3.4.3). gzip ends
# with the CRC-32 that a chunk ends with, too.
describe() {
    local chunk=$FOLDER/chunk crc
    { printf 'tEXtDescription\0' && cat; } >"$chunk"
    crc=$(gzip -c "$chunk" | tail -c 8 | od -An -tx4 --endian=little -N4)
    {
        head -c -12 "$1"
        four_bytes $(($(stat -c %s "$chunk") - 4))
        cat "$chunk"
        four_bytes $((16#${crc// /}))
        tail -c 12 "$1"
    } >"$FOLDER/described"
    mv "$FOLDER/described" "$1"
}

# The page as its readers see it, and in it what its tables show.
take_page() {
    local view name size scheme
    for view in light:1000x496:1 dark:1000x496:0 phone:390x640:1; do
        IFS=: read -r name size scheme <<<"$view"
        browse "$size" "$scheme" --screenshot="$FOLDER/page-$name.png"
        browse "$size" "$scheme" --dump-dom | headings | describe "$FOLDER/page-$name.png"
    done
}

# A terminal with `top` in it, as text with the sequences of its colours.
take_top() {
    tmux -u -S "$FOLDER/tmux" -f /dev/null new-session -d -x "$COLUMNS_OF_TOP" -y "$LINES_OF_TOP" \
        "$ENGINE top --socket $RIG/control" \; set status off
    sleep 5
    tmux -S "$FOLDER/tmux" capture-pane -e -p >"$FOLDER/top"
    tmux -S "$FOLDER/tmux" send-keys q
}

# What a select-graphic-rendition sequence (ECMA-48 8.3.117) with these numbers does to STYLE, the names of what a run of text is.
style_of() {
    local code codes=$1
    codes=${codes//38;5;/3}
    for code in ${codes//;/ }; do
        case $code in
        0) STYLE= ;;
        1) STYLE+='bold ' ;;
        2) STYLE+='dim ' ;;
        4) STYLE+='under ' ;;
        7) STYLE+='reverse ' ;;
        3[1-3]) STYLE+="c${code:1} " ;;
        39) STYLE=${STYLE//c[1-3] /} ;;
        49) ;;
        *) die "top draws with an attribute that this does not know: $code" ;;
        esac
    done
}

# What browsers do not take several of for one.
BLANK=$'\u00a0'

# draw_terminal  the lines of a terminal that it reads as SVG; each run of text has the width of its cells, whatever font there is.
draw_terminal() {
    local wide=8 high=18 line y=0 x run width
    local STYLE=
    cat <<SVG
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 $((COLUMNS_OF_TOP * wide + 16)) $((LINES_OF_TOP * high + 12))" font-family="monospace" font-size="13">
<title>proxyengine top on a terminal</title>
<style>text{fill:#ddd}.bold{font-weight:bold}.dim{fill:#999}.under{text-decoration:underline}.c1{fill:#ff7b6b}.c2{fill:#58d68d}.c3{fill:#f5b041}text.reverse{fill:#1c1c1c}rect.reverse{fill:#ddd}</style>
<rect width="100%" height="100%" fill="#1c1c1c"/>
SVG
    while IFS= read -r line; do
        y=$((y + high)) x=8
        while [ -n "$line" ]; do
            if [[ $line =~ ^$'\e'\[([0-9;]*)m ]]; then
                style_of "${BASH_REMATCH[1]:-0}"
                line=${line:${#BASH_REMATCH[0]}}
                continue
            fi
            run=${line%%$'\e'*}
            line=${line:${#run}}
            width=$((${#run} * wide))
            [[ $STYLE != *reverse* ]] ||
                printf '<rect x="%s" y="%s" width="%s" height="%s" class="reverse"/>\n' "$x" $((y - high + 5)) "$width" "$high"
            [[ -z $STYLE && -z ${run// /} ]] ||
                printf '<text x="%s" y="%s" textLength="%s" class="%s">%s</text>\n' "$x" "$y" "$width" "${STYLE% }" "$(escape <<<"${run// /$BLANK}")"
            x=$((x + width))
        done
    done
    echo '</svg>'
}

main() {
    local name
    is_root || die "the demo has network namespaces, for which this must be root"
    ensure_packages "for the pictures" tmux tshark chromium-headless-shell fonts-dejavu-core curl socat || die "packages are missing"
    FOLDER=$(mktemp -d)
    trap cleanup EXIT
    ./build.sh demo --keep | tee "$FOLDER/demo" >&2
    ENGINE=$(sed -n 's/^ *\(.*\) top --socket .*/\1/p' "$FOLDER/demo")
    RIG=$(sed -n 's/^logs, records and the configuration: //p' "$FOLDER/demo")
    say "pictures: a capture"
    take_capture
    say "pictures: the page and top"
    ask &
    ASKS=$!
    sleep 3
    take_page
    take_top
    draw_capture "$FOLDER/reset.pcapng" >"$FOLDER/capture.svg"
    draw_terminal <"$FOLDER/top" >"$FOLDER/top.svg"
    for name in page-light.png page-dark.png page-phone.png top.svg capture.svg; do
        cp "$FOLDER/$name" "docs/$name"
        printf 'docs/%s %s bytes\n' "$name" "$(stat -c %s "docs/$name")"
    done
}

export LC_ALL=C.UTF-8
main
