#!/usr/bin/env bash
# Makes what the emulated machine of the NIC lab starts from: Debian's kernel, unpacked and not installed, and a first file
# system that mounts the host's. prepare.sh FOLDER leaves there `vmlinuz`, `initrd.gz`, `lib/modules` and `version`; what is
# there already stays. The kernel comes from the Debian archive that this machine is set up for.
set -euo pipefail
ROOT=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
# shellcheck source=scripts/common.sh
. "$ROOT/scripts/common.sh"

FOLDER=${1:?which folder?}
# In the order that insmod needs; the rest is loaded by modprobe once the host's file system is there.
FIRST_MODULES=(virtio_pci 9pnet_virtio 9p overlay)

# The package that linux-image-amd64 stands for: the flavour with 9p and the emulated cards (the cloud flavour has neither).
kernel_package() {
    apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1
}

fetch_kernel() {
    local package
    package=$(kernel_package)
    [ -n "$package" ] || die "apt knows no linux-image-amd64; apt-get update may help"
    say "nic-lab: fetching $package"
    (
        work=$(mktemp -d "$FOLDER/fetch.XXXXXX")
        trap 'rm -rf "$work"' EXIT
        cd "$work"
        # apt's own user may not write here; that is only worth a warning to it.
        apt-get -q download "$package" >/dev/null 2>&1 || die "apt-get download $package has failed"
        dpkg-deb -x ./*.deb unpacked
        version=${package#linux-image-}
        depmod -b unpacked "$version"
        rm -rf "${FOLDER:?}/lib"
        mv unpacked/lib "$FOLDER/lib"
        cp "unpacked/boot/vmlinuz-$version" "$FOLDER/vmlinuz"
        printf '%s\n' "$version" >"$FOLDER/version"
    )
}

make_initrd() {
    local version number=10 module
    version=$(cat "$FOLDER/version")
    (
        work=$(mktemp -d "$FOLDER/initrd.XXXXXX")
        trap 'rm -rf "$work"' EXIT
        mkdir -p "$work"/{bin,proc,sys,dev,lower,rw,new,m}
        cp "$(command -v busybox)" "$work/bin/busybox"
        for module in "${FIRST_MODULES[@]}"; do
            modprobe -d "$FOLDER" -S "$version" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
        done | awk '!seen[$0]++' | while read -r module; do
            cp "$module" "$work/m/$number-${module##*/}"
            number=$((number + 1))
        done
        install -m 755 "$ROOT/scripts/nic-lab/init" "$work/init"
        cd "$work"
        find . | cpio -o -H newc --quiet | gzip -1 >"$FOLDER/initrd.part"
        mv "$FOLDER/initrd.part" "$FOLDER/initrd.gz"
    )
}

for tool in qemu-system-x86_64 busybox cpio modprobe depmod dpkg-deb dpdk-devbind.py setpriv; do
    have "$tool" || die "$tool is missing (Debian packages: qemu-system-x86 busybox-static cpio kmod dpdk)"
done
mkdir -p "$FOLDER"
FOLDER=$(cd "$FOLDER" && pwd)
[ -s "$FOLDER/version" ] || fetch_kernel
make_initrd
