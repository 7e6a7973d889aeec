# shellcheck shell=bash
# The manual: the documents of the tree as a book with a search, in target/manual/book. Sourced by build.sh after common.sh.
#
#   docs/SUMMARY.md and what it names ─► target/manual/src, the same folders ─► mdbook ─► target/manual/book/index.html

MDBOOK_VERSION=0.5.4

# Sets MDBOOK, and builds it if this version is not there.
need_mdbook() {
    local tools
    tools=$(target_dir)/tools
    MDBOOK=$tools/bin/mdbook
    [ "$("$MDBOOK" --version 2>/dev/null)" != "mdbook v$MDBOOK_VERSION" ] || return 0
    [ -z "${PROXYENGINE_NO_INSTALL:-}" ] || die "docs: mdbook $MDBOOK_VERSION is missing, and PROXYENGINE_NO_INSTALL is set"
    need_cargo
    say "docs: building mdbook $MDBOOK_VERSION, once; that takes some minutes"
    shown_cargo docs install mdbook --version "=$MDBOOK_VERSION" --locked --no-default-features --features search \
        --root "$tools" --quiet || die "docs: mdbook could not be built"
}

# manual_sources FOLDER  lays out what the book is made of: links between documents work as they do in the tree, but for
# docs/lab, which is not part of it.
manual_sources() {
    local file
    rm -rf "$1"
    mkdir -p "$1/src"
    cp docs/book.toml "$1/"
    for file in ./*.md docs/*.md docs/*/*.md docs/*.svg docs/*.png config/*.toml LICENSE*; do
        case $file in docs/lab/* | docs/SUMMARY.md) continue ;; esac
        [ ! -e "$file" ] || cp --parents "$file" "$1/src/"
    done
    find "$1/src" -name '*.md' -exec sed -E -i 's#\[([^]]*)\]\((docs/)?(lab/[^)]*|SUMMARY\.md)\)#\1#g' {} +
    sed -e 's#](#](docs/#' -e 's#](docs/\.\./#](#' docs/SUMMARY.md >"$1/src/SUMMARY.md"
}

cmd_docs() {
    local manual log
    need_mdbook
    manual=$(target_dir)/manual
    manual_sources "$manual"
    log=$("$MDBOOK" build "$manual" 2>&1) || die "docs: $log"
    ! grep -q 'WARN\|ERROR' <<<"$log" || die "docs: $log"
    printf '%s\n' "$manual/book/index.html"
}
