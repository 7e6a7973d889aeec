# shellcheck shell=bash
# Container images of the Debian packages, as archives of the Open Container Initiative. Sourced by build.sh after common.sh,
# packages.sh and package.sh.
#
#   packages' libraries (mmdebstrap, extracted only) + the package ─► one layer: no shell, no package manager, no compiler
#   ─► NAME_VERSION.oci.tar, which `podman load` and `docker load` take
#
# The program runs as a user of its own. What it needs of capabilities stands at its file, so that they are all it ever has.

# The user that programs run as, whatever its name.
IMAGE_USER=10001

# image_part NAME WHAT  what an image is made of: the capabilities of its program, or the arguments that it gets.
image_part() {
    case $1.$2 in
    proxyengine.capabilities) printf 'cap_ipc_lock,cap_net_admin,cap_net_raw=ep' ;;
    proxyengine.arguments) printf '"run", "/etc/proxyengine/proxyengine.toml"' ;;
    mmproxy.capabilities) printf 'cap_net_admin,cap_net_bind_service=ep' ;;
    mmproxy.arguments) printf '"--config", "/etc/mmproxy/mmproxy.toml"' ;;
    esac
}

# image_libraries DEB  prints the libraries that a package depends on, with commas between them.
image_libraries() {
    dpkg-deb -f "$1" Depends | tr ',' '\n' | sed -n 's/^ *\(lib[^ |]*\).*/\1/p' | sort -u | paste -sd ,
}

# image_root DEB NAME ROOT  makes the file system.
image_root() {
    local deb=$1 name=$2 root=$3 sources=()
    # This machine's own archive, where it is written down in one file.
    [ ! -s /etc/apt/sources.list ] || sources=(/etc/apt/sources.list)
    [ ! -s /etc/apt/sources.list.d/debian.sources ] || sources=(/etc/apt/sources.list.d/debian.sources)
    mmdebstrap --quiet --variant=extract --mode=root --include="$(image_libraries "$deb")" bookworm "$root" "${sources[@]}" ||
        return 1
    dpkg-deb -x "$deb" "$root"
    ldconfig -r "$root"
    (
        cd "$root" || exit 1
        rm -rf usr/share/{doc,man,info,locale,lintian,bash-completion,zsh,fish,bug} usr/{games,include,src} var/{cache,lib,log} \
            boot home media mnt opt root srv {,usr/}lib/{systemd,sysusers.d,udev} dev/* \
            etc/{apt,cron.daily,dpkg,fstab,hostname,resolv.conf,systemd}
    ) || return 1
    printf 'root:x:0:0::/:/\nproxy:x:%s:%s::/:/\n' "$IMAGE_USER" "$IMAGE_USER" >"$root/etc/passwd"
    printf 'root:x:0:\nproxy:x:%s:\n' "$IMAGE_USER" >"$root/etc/group"
    mkdir -p "$root"/{dev,proc,sys,run,tmp,"etc/$name"}
    chmod 1777 "$root/tmp"
    setcap "$(image_part "$name" capabilities)" "$root/usr/bin/$name"
}

# blob FILE LAYOUT  puts a file into a layout, and prints its digest.
blob() {
    local digest
    digest=$(sha256sum "$1" | cut -d ' ' -f 1)
    mv "$1" "$2/blobs/sha256/$digest"
    printf '%s' "$digest"
}

# descriptor KIND DIGEST LAYOUT  prints where in a layout something is.
descriptor() {
    printf '{"mediaType": "application/vnd.oci.image.%s", "digest": "sha256:%s", "size": %s' "$1" "$2" \
        "$(stat -c %s "$3/blobs/sha256/$2")"
}

# image_archive NAME VERSION ROOT FILE  packs a file system as an image.
image_archive() {
    local name=$1 version=$2 root=$3 layout diff layer config manifest date
    layout=$(mktemp -d)
    date=$(source_date)
    mkdir -p "$layout/blobs/sha256"
    tar -C "$root" --sort=name --mtime="@$date" --numeric-owner --xattrs --xattrs-include=security.capability --format=posix \
        --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime -cf "$layout/layer" .
    diff=$(sha256sum "$layout/layer" | cut -d ' ' -f 1)
    gzip -n "$layout/layer"
    layer=$(blob "$layout/layer.gz" "$layout")
    cat >"$layout/config" <<CONFIG
{"architecture": "amd64", "os": "linux", "created": "$(date -u -d "@$date" +%FT%TZ)",
 "config": {"User": "$IMAGE_USER:$IMAGE_USER", "Entrypoint": ["/usr/bin/$name"], "Cmd": [$(image_part "$name" arguments)],
  "StopSignal": "SIGTERM", "Labels": {"org.opencontainers.image.version": "$version",
  "org.opencontainers.image.licenses": "Apache-2.0 OR MIT"}},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$diff"]}, "history": [{"created_by": "build.sh image"}]}
CONFIG
    config=$(blob "$layout/config" "$layout")
    printf '{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": %s}, "layers": [%s}]}\n' \
        "$(descriptor config.v1+json "$config" "$layout")" "$(descriptor layer.v1.tar+gzip "$layer" "$layout")" >"$layout/manifest"
    manifest=$(blob "$layout/manifest" "$layout")
    printf '{"schemaVersion": 2, "manifests": [%s, "annotations": {"org.opencontainers.image.ref.name": "%s:%s"}}]}\n' \
        "$(descriptor manifest.v1+json "$manifest" "$layout")" "$name" "$version" >"$layout/index.json"
    printf '{"imageLayoutVersion": "1.0.0"}\n' >"$layout/oci-layout"
    tar -C "$layout" --sort=name --mtime="@$date" --owner=0 --group=0 --numeric-owner -cf "$4" oci-layout index.json blobs
    rm -rf "$layout"
}

cmd_image() {
    local debs='' out='' name deb version root
    while [ $# -gt 0 ]; do
        [ $# -gt 1 ] || die "image: $1 needs a value"
        case $1 in
        --debs) debs=$(cd "$CALLED_FROM" && readlink -e "$2") || die "image: there is no folder $2" ;;
        --out) out=$(cd "$CALLED_FROM" && readlink -m "$2") ;;
        *) die "image: unknown option '$1'" ;;
        esac
        shift 2
    done
    debs=${debs:-$(target_dir)/package/debs}
    out=${out:-$(target_dir)/package/images}
    install "for images" "${IMAGE_PACKAGES[@]}" || die "the packages to make images with are missing"
    is_root || die "image makes a file system with owners and capabilities, for which it must be root"
    mkdir -p "$out"
    for name in proxyengine mmproxy; do
        deb=$(find "$debs" -name "${name}_*_amd64.deb" 2>/dev/null | sort -V | tail -n 1)
        [ -n "$deb" ] || die "image: there is no package of $name in $debs; ./build.sh package makes it"
        version=$(dpkg-deb -f "$deb" Version)
        say "image: $name $version"
        root=$(mktemp -d)
        chmod 755 "$root"
        image_root "$deb" "$name" "$root" || die "image: no file system of Debian's packages can be made"
        image_archive "$name" "$version" "$root" "$out/${name}_$version.oci.tar"
        rm -rf "$root"
        printf '%s\n' "$out/${name}_$version.oci.tar"
    done
}

# What knows the schemas of container files, in a folder of its own; returns 1 where it cannot be had.
need_schemas() {
    SCHEMAS=$(target_dir)/tools/schemas
    ! cmp -s scripts/schemas.txt "$SCHEMAS/installed" || return 0
    [ -z "${PROXYENGINE_NO_INSTALL:-}" ] || return 1
    rm -rf "$SCHEMAS"
    { python3 -m venv "$SCHEMAS" && "$SCHEMAS/bin/pip" install --quiet --disable-pip-version-check \
        --requirement scripts/schemas.txt; } >/dev/null 2>&1 || return 1
    cp scripts/schemas.txt "$SCHEMAS/installed"
}

lint_containers() {
    local compose=(packaging/containers/compose.yaml crates/mmproxy/packaging/compose.yaml)
    need_schemas || {
        say "lint: container files not looked at: check-jsonschema and kubernetes-validate cannot be had (pip, python3-venv)"
        return 0
    }
    say "lint: container files"
    "$SCHEMAS/bin/check-jsonschema" --quiet --builtin-schema vendor.compose-spec "${compose[@]}"
    "$SCHEMAS/bin/kubernetes-validate" --strict --quiet packaging/containers/kubernetes.yaml
}
