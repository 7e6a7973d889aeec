#!/usr/bin/env bash
# Takes the pictures of the status page in docs/ anew: of an engine on the software rig, in Chromium, as tests/rig/page.rs
# looks at it. Needs root and the packages of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

# Of each picture: it is read over networks, and kept in every copy of the repository.
MOST_BYTES=61440

main() {
    local folder name size
    folder=$(mktemp -d)
    # shellcheck disable=SC2064  # the folder of now
    trap "rm -rf '$folder'" EXIT
    PROXYENGINE_REQUIRE_RIG=1 PROXYENGINE_SCREENSHOTS=$folder cargo test -p proxyengine --test rig page >&2
    for name in page-light page-dark page-phone; do
        size=$(stat -c %s "$folder/$name.png")
        [ "$size" -le "$MOST_BYTES" ] || die "$name.png has $size bytes, more than $MOST_BYTES"
        cp "$folder/$name.png" "docs/$name.png"
        printf 'docs/%s.png %s bytes\n' "$name" "$size"
    done
}

main
