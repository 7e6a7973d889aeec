# shellcheck shell=bash
# Debian packages, equal byte for byte from equal sources, compiler and profile, wherever they are built. Sourced by
# build.sh after common.sh, packages.sh and profile.sh.
#
#   sources + profile ─► target/package/KEY: programs without this machine's paths ─► make_packages ─► *.deb
#   the same in a copy of the sources under another name ─► equal?

# What the packages hold beside texts.
PACKAGED=(proxyengine trafficengine mmproxy libproxyproto.so libproxyproto_connect.so)

# Where the sources seem to be in what is built.
SOURCES_NAME=/usr/src/proxyengine

# Prints the commit's time, which is the packages', unless somebody says another; of sources without a history, that of
# the change log.
source_date() {
    [ -z "${SOURCE_DATE_EPOCH:-}" ] || { printf '%s' "$SOURCE_DATE_EPOCH" && return; }
    git -C "$ROOT" log -1 --format=%ct 2>/dev/null || stat -c %Y "$ROOT/CHANGELOG.md"
}

# build_packaged PROFILE  builds what is packaged, and prints where it is. PROFILE is a file, or empty for none.
build_packaged() {
    local profile=$1 key target home
    key=$({ rustc -vV; cat "${profile:-/dev/null}"; } | sha256sum | cut -c 1-16)
    target=$(target_dir)/package/$key
    home=${CARGO_HOME:-$HOME/.cargo}
    # As a wrapper: what cargo itself is told of flags goes into names of symbols, and paths differ.
    PACKAGE_RUSTC_FLAGS="$CPU_FLAG --remap-path-prefix=$target=$SOURCES_NAME/target \
--remap-path-prefix=$ROOT=$SOURCES_NAME --remap-path-prefix=$home=/usr/src/cargo ${profile:+-Cprofile-use=$profile}" \
        RUSTFLAGS='' CFLAGS="-ffile-prefix-map=$target=$SOURCES_NAME/target -ffile-prefix-map=$home=/usr/src/cargo" \
        RUSTC_WRAPPER="$ROOT/scripts/rustc-packaged.sh" SOURCE_DATE_EPOCH=$(source_date) CARGO_INCREMENTAL=0 \
        shown_cargo package build --release --locked --target-dir "$target" \
        --package=proxyengine --package=trafficengine --package=mmproxy --package=libproxyproto \
        --package=libproxyproto-connect "${FEATURES[@]}" --bins --lib 1>&2 || return 1
    printf '%s/release' "$target"
}

# Says which programs name folders of this machine, and returns 1 if one does.
without_paths() {
    local program stripped found=0
    stripped=$(mktemp)
    for program in "${PACKAGED[@]}"; do
        objcopy --strip-all "$1/$program" "$stripped" || found=1
        if grep -qF -e "$ROOT" -e "${CARGO_HOME:-$HOME/.cargo}" "$stripped"; then
            say "package: $program names a folder of this machine"
            found=1
        fi
    done
    rm -f "$stripped"
    return "$found"
}

# make_packages BUILT OUT  makes the packages of the programs in one folder and puts them into another.
make_packages() (
    built=$1 out=$2
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
    SOURCE_DATE_EPOCH=$(source_date)
    export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 TZ=UTC
    umask 022
    version=${PACKAGE_VERSION:-$("$built/proxyengine" --version | sed 's/.* //')}
    cd "$ROOT" || exit 1
    cp -r packaging/debian "$tree/debian"
    cp crates/mmproxy/packaging/mmproxy.service "$tree/debian/"
    mkdir -p "$tree/debian/source" "$tree/built/pages/man" "$tree/debs"
    printf '3.0 (native)\n' >"$tree/debian/source/format"
    cat >"$tree/debian/changelog" <<CHANGES
proxyengine ($version) bookworm; urgency=medium

  * What changed stands in /usr/share/doc/proxyengine/NEWS.md.

 -- $(sed -n 's/^Maintainer: //p' packaging/debian/control)  $(date -R -d "@$SOURCE_DATE_EPOCH")
CHANGES
    command install -m 755 "${PACKAGED[@]/#/$built/}" "$tree/built/"
    chmod 644 "$tree"/built/*.so
    command install -m 644 packaging/proxyengine.toml "$tree/built/"
    for program in proxyengine trafficengine; do
        "$built/$program" generate "$tree/built/pages"
        mv "$tree/built/pages/bash/$program.bash" "$tree/built/pages/bash/$program"
    done
    help2man --no-info --name "$(sed -n 's/^Description=mmproxy: //p' crates/mmproxy/packaging/mmproxy.service)" \
        --output "$tree/built/pages/man/mmproxy.1" "$built/mmproxy"
    package_texts "$tree/built/texts"
    (cd "$tree" && ./debian/rules binary) >"$tree/log" 2>&1 || {
        tail -n 30 "$tree/log" >&2
        die "package: debhelper has failed"
    }
    mkdir -p "$out"
    mv "$tree"/debs/*.deb "$out/"
)

# Documents, examples and the list of what each package is made of.
package_texts() {
    local name texts=$1
    mkdir -p "$texts"/{proxyengine,trafficengine,mmproxy,libproxyproto}
    # The manual, whose documents name each other.
    cp rt-tuning.md SECURITY.md docs/*.md docs/*.svg docs/*.png "$texts/proxyengine/"
    rm "$texts/proxyengine/SUMMARY.md"
    cp -r docs/reference packaging/monitoring packaging/wireshark "$texts/proxyengine/"
    # debhelper would take it for the package's own change log by its name.
    cp CHANGELOG.md "$texts/proxyengine/NEWS.md"
    # They lie in one folder here, without those about the code.
    sed -E -i -e 's#\]\((\.\./|docs/)#](#g' \
        -e 's#\[([^]]*)\]\((lab/|SUMMARY|DECISIONS|ARCHITECTURE|CONTRIBUTING)[^)]*\)#\1#g' "$texts"/proxyengine/*.md
    cp docs/traffic.md config/traffic*.toml "$texts/trafficengine/"
    cp docs/{mmproxy,proxy-protocol}.md crates/mmproxy/packaging/mmproxy.toml "$texts/mmproxy/"
    cp docs/libproxyproto.md "$texts/libproxyproto/"
    mkdir "$texts/proxyengine/examples"
    cp config/{82599,x710,vm,services}.toml "$texts/proxyengine/examples/"
    for name in proxyengine trafficengine mmproxy libproxyproto; do
        sbom "$name" >"$texts/$name/$name.cdx.json"
    done
}

# sbom PACKAGE  prints its parts, with versions, licences and checksums, as CycloneDX 1.5.
sbom() {
    local roots=(--package "$1")
    [ "$1" != libproxyproto ] || roots+=(--package libproxyproto-connect)
    [ "$1" != mmproxy ] || [ "${#FEATURES[@]}" -eq 0 ] || roots+=(--features inline)
    cargo tree --quiet --locked "${roots[@]}" --edges normal --prefix none --no-dedupe --format '{p}|{l}' |
        sed -e 's/ (proc-macro)//' -e 's/ ([^)]*)//' | LC_ALL=C sort -u | awk -F'|' -v name="$1" -v lock="$ROOT/Cargo.lock" '
        BEGIN {
            while ((getline line < lock) > 0) {
                if (split(line, part, "\"") < 2) continue
                if (line ~ /^name = /) crate = part[2]
                if (line ~ /^version = /) version = part[2]
                if (line ~ /^checksum = /) sum[crate " " version] = part[2]
            }
            printf "{\n  \"bomFormat\": \"CycloneDX\",\n  \"specVersion\": \"1.5\",\n  \"version\": 1,\n"
            printf "  \"metadata\": {\"component\": {\"type\": \"application\", \"name\": \"%s\"}},\n  \"components\": [", name
        }
        NF && $1 != "" {
            split($1, id, " ")
            version = substr(id[2], 2)
            printf "%s\n    {\"type\": \"library\", \"name\": \"%s\", \"version\": \"%s\"", between, id[1], version
            if ((id[1] " " version) in sum) {
                printf ", \"purl\": \"pkg:cargo/%s@%s\"", id[1], version
                printf ", \"hashes\": [{\"alg\": \"SHA-256\", \"content\": \"%s\"}]", sum[id[1] " " version]
            }
            if ($2 != "") printf ", \"licenses\": [{\"expression\": \"%s\"}]", spdx($2)
            printf "}"
            between = ","
        }
        END { printf "\n  ]\n}\n" }
        function spdx(text) { gsub("/", " OR ", text); return text }'
}

# is_reproducible OUT PROFILE  packages a copy of the sources under another name, and compares with what is in OUT.
is_reproducible() {
    local out=$1 profile=$2 deb copy status=0 how=(--no-pgo)
    [ -z "$profile" ] || how=(--profile-data "$profile")
    copy=$(mktemp -d)/elsewhere-with-another-name
    mkdir "$copy"
    git -C "$ROOT" ls-files -z --cached --others --exclude-standard | tar -C "$ROOT" --null -T - -cf - | tar -xf - -C "$copy"
    say "package: building again elsewhere, to compare"
    env -u CARGO_TARGET_DIR SOURCE_DATE_EPOCH="$(source_date)" "$copy/build.sh" package "${how[@]}" --out "$copy/debs" >/dev/null ||
        status=1
    for deb in "$out"/*.deb; do
        cmp -- "$deb" "$copy/debs/${deb##*/}" >&2 || status=1
    done
    rm -rf "$(dirname "$copy")"
    return "$status"
}

# Prints what was made, as JSON; REPRODUCIBLE is true or false.
describe_packages() {
    local out=$1 reproducible=$2 deb between=
    printf '{\n  "packages": ['
    for deb in "$out"/*.deb; do
        printf '%s\n    {"file": "%s", "size": %s, "sha256": "%s"}' "$between" "${deb##*/}" "$(stat -c %s "$deb")" \
            "$(sha256sum "$deb" | cut -d ' ' -f 1)"
        between=,
    done
    printf '\n  ],\n  "reproducible": %s\n}\n' "$reproducible"
}
