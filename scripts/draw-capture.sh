#!/usr/bin/env bash
# Draws tshark's view of a capture, a line for each frame of its first connections, as SVG: docs/capture.svg.
#     PROXYENGINE_KEEP_CAPTURE=/tmp/reset.pcapng cargo test --test engine capture
#     scripts/draw-capture.sh /tmp/reset.pcapng >docs/capture.svg
set -euo pipefail

FILE=$1 STEP=18 WIDTH=1180
here=$(cd "$(dirname "$0")/.." && pwd)

rows() {
    HOME=/nonexistent tshark -n -r "$FILE" -X "lua_script:$here/packaging/wireshark/proxyengine.lua" -c 24 -T fields -E separator='|' \
        -e frame.number -e frame.time_relative -e proxyengine.leg -e proxyengine.pkt -e proxyengine.kind -e _ws.col.Info -e proxyengine.events \
        -e proxyengine.end 2>/dev/null
}

escape() { sed -e 's/&/\&amp;/g' -e 's/</\&lt;/g' -e 's/>/\&gt;/g'; }

# cell X Y CLASS TEXT
cell() { printf '<text x="%s" y="%s" class="%s">%s</text>\n' "$@"; }

mapfile -t lines < <(rows | escape)
height=$((STEP * (${#lines[@]} + 2)))
cat <<SVG
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 $WIDTH $height" font-family="monospace" font-size="12">
<title>A capture in tshark: both legs of a connection, and what was decided</title>
<style>.head{font-weight:bold}.client{fill:#00c}.server{fill:#060}.own{fill:#70a}.end{fill:#b40;font-weight:bold}</style>
<rect width="$WIDTH" height="$height" fill="#fff"/>
SVG
columns=(10 50 120 180 240 320 760 1080)
heads=("No." "Time" "Leg" "Packet" "Kind" "Info" "Events" "Ended by")
for i in "${!columns[@]}"; do
    cell "${columns[i]}" "$STEP" head "${heads[i]}"
done
y=$STEP
for line in "${lines[@]}"; do
    y=$((y + STEP))
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
