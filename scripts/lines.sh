#!/usr/bin/env bash
# Lines of Rust by part: all, and code, which is neither comment, blank line nor test.
# usage: scripts/lines.sh [-f] PART...     a PART is a folder or a file; -f prints each file as well
# Not counted: files named tests.rs, folders named tests, and a file's end from a `#[cfg(test)]` module on.
set -euo pipefail
each=0
if [ "${1:-}" = -f ]; then
    each=1
    shift
fi
if [ $# = 0 ]; then
    echo "usage: scripts/lines.sh [-f] PART..." >&2
    exit 2
fi

# Prints "lines code name" for each file of a part.
count() {
    find "$1" -name '*.rs' ! -name tests.rs ! -path '*/tests/*' -print0 | sort -z |
        xargs -0 -r awk '
            function flush() { if (name != "") print lines, code, name }
            FNR == 1 { flush(); name = FILENAME; lines = code = block = test = 0; marked = 0 }
            test { next }
            marked && /^(pub )?mod / { test = 1; lines--; code--; next }
            { lines++; marked = 0 }
            block { if (/\*\//) block = 0; next }
            /^[ \t]*\/\*/ { block = !/\*\//; next }
            /^[ \t]*(\/\/.*)?$/ { next }
            { code++ }
            /^#\[cfg\(test\)\]/ { marked = 1 }
            END { flush() }'
}

for part in "$@"; do
    [ -e "$part" ] || { echo "scripts/lines.sh: there is no $part" >&2; exit 1; }
    count "$part" | awk -v part="$part" -v each="$each" '
        { lines += $1; code += $2; files++; if (each) printf "%-60s %7d %7d\n", $3, $1, $2 }
        END { printf "%-60s %7d %7d  %d files\n", part, lines, code, files }'
done | awk '{ print } $0 ~ / files$/ { lines += $2; code += $3; files += $4 }
    END { printf "%-60s %7d %7d  %d files\n", "sum", lines, code, files }'
