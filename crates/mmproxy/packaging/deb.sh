#!/usr/bin/env bash
# Makes a Debian package of mmproxy and the preload libraries from what `cargo build --release` has built:
#   cargo build --release -p mmproxy -p libproxyproto -p libproxyproto-connect && crates/mmproxy/packaging/deb.sh [FOLDER]
set -euo pipefail
HERE=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)
OUT=$(readlink -m "${1:-.}")
BUILT=${CARGO_TARGET_DIR:-$ROOT/target}/release
STAGE=$(mktemp -d)
trap 'rm -rf "$STAGE"' EXIT
chmod 755 "$STAGE"

VERSION=$("$BUILT/mmproxy" --version | sed 's/.* //')
ARCHITECTURE=$(dpkg --print-architecture)
LIBRARIES=/usr/lib/mmproxy

install -D -m 755 "$BUILT/mmproxy" "$STAGE/usr/bin/mmproxy"
for library in libproxyproto.so libproxyproto_connect.so; do
    install -D -m 644 "$BUILT/$library" "$STAGE$LIBRARIES/$library"
done
install -D -m 644 "$HERE/mmproxy.service" "$STAGE/lib/systemd/system/mmproxy.service"
install -D -m 644 "$HERE/mmproxy.toml" "$STAGE/usr/share/doc/mmproxy/examples/mmproxy.toml"
for text in docs/mmproxy.md docs/libproxyproto.md docs/proxy-protocol.md LICENSE-APACHE LICENSE-MIT; do
    install -D -m 644 "$ROOT/$text" "$STAGE/usr/share/doc/mmproxy/$(basename "$text")"
done
install -d -m 755 "$STAGE/etc/mmproxy" "$STAGE/DEBIAN"

# The service starts when somebody has written its configuration and enables it, not by being installed.
cat >"$STAGE/DEBIAN/control" <<CONTROL
Package: mmproxy
Version: $VERSION
Architecture: $ARCHITECTURE
Maintainer: the maintainers of proxyengine
Section: net
Priority: optional
Depends: libc6 (>= 2.36)
Recommends: nftables
Installed-Size: $(du -sk "$STAGE" | cut -f1)
Description: servers see their clients' addresses behind a load balancer
 Takes PROXY protocol headers off TCP connections and UDP datagrams and connects
 to the server from the client's own address. With it come two libraries to
 preload into servers and clients.
CONTROL

mkdir -p "$OUT"
dpkg-deb --root-owner-group --build "$STAGE" "$OUT/mmproxy_${VERSION}_$ARCHITECTURE.deb"
