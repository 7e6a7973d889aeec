# shellcheck shell=bash
# Debian packages: what is missing is installed, nothing else is touched. Sourced by build.sh after common.sh.
# shellcheck disable=SC2034  # the lists are read by build.sh

# needed by cargo build: DPDK's headers and libraries, libclang for bindgen, a linker
BUILD_PACKAGES=(libdpdk-dev libclang-14-dev pkg-config gcc libc6-dev)
# needed by mmproxy's inline mode: a compiler for its programs, what libbpf is built with
INLINE_PACKAGES=(clang libelf-dev zlib1g-dev make)
# needed by the demo: namespaces, the servers, the client
DEMO_PACKAGES=(bash iproute2 iputils-ping ethtool procps curl openssl nginx socat)
# needed by the tests: faults, captures, the clients and servers that nobody here wrote, a browser with a font, and dpdk-testpmd
TEST_PACKAGES=("${DEMO_PACKAGES[@]}" nftables tcpdump iperf3 netcat-openbsd redis-server strace haproxy
    libnginx-mod-stream postgresql slapd ldap-utils openssh-client openssh-server dropbear-bin dpdk-dev crun debhelper help2man libcap2-bin mmdebstrap lintian
    systemd util-linux prometheus dnsmasq-base nfdump nmap hping3 keepalived tshark chromium-headless-shell fonts-dejavu-core)
# needed to build with a profile: llvm-profdata, where the toolchain has none
PROFILE_PACKAGES=(llvm-19)
# needed by `bench peers`: the proxies that proxyengine is measured beside, namespaces, and a CPU for each
PEER_PACKAGES=(haproxy nginx libnginx-mod-stream iproute2 ethtool procps util-linux)
# needed by `bench mmproxy`: the proxies that it is measured beside, of which cargo builds one more
MMPROXY_PEER_PACKAGES=(go-mmproxy haproxy nginx libnginx-mod-stream iproute2)
# needed by `package`: what makes Debian packages, manual pages of a program's help, and the commit's time
PACKAGE_PACKAGES=(debhelper help2man git)
# needed by `image`: what gets Debian's libraries, and writes capabilities of files
IMAGE_PACKAGES=(mmdebstrap libcap2-bin)
# needed by prepNet.sh on a real NIC
NIC_PACKAGES=(dpdk kmod)
# needed by the NIC lab: the emulator, what its first file system is made of, and what binds cards
LAB_PACKAGES=("${DEMO_PACKAGES[@]}" qemu-system-x86 busybox-static cpio kmod dpdk tcpdump openssh-client openssh-server)
# looked at by `build.sh lint` only
LINT_PACKAGES=(shellcheck python3-venv)

# Services that come with these packages, PACKAGE=SERVICE; the tests start copies of their own in their namespaces.
PACKAGED_SERVICES=(nginx=nginx iperf3=iperf3 redis-server=redis-server postgresql=postgresql slapd=slapd haproxy=haproxy
    openssh-server=ssh prometheus=prometheus)

POLICY_FILE=/usr/sbin/policy-rc.d

is_installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Prints those of the named packages that are not installed.
missing_packages() {
    local package
    for package in "$@"; do
        is_installed "$package" || printf '%s\n' "$package"
    done
}

apt_lists_are_empty() { ! compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null; }

# Runs as root: installs the packages with their services kept from starting, now and at the next boot.
# A policy-rc.d that is already there belongs to the machine and stays; ours goes away again whatever happens.
# shellcheck disable=SC2016  # expanded by the shell that runs it
INSTALL_SCRIPT='
set -eu
policy=$1 services=$2
shift 2
if [ ! -e "$policy" ] && [ ! -L "$policy" ]; then
    trap "rm -f \"$policy\"" EXIT
    trap "exit 130" INT TERM HUP
    printf "#!/bin/sh\nexit 101\n" >"$policy"
    chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@"
for entry in $services; do
    service=${entry#*=}
    case " $* " in
    *" ${entry%%=*} "*)
        if command -v deb-systemd-helper >/dev/null; then deb-systemd-helper disable "$service.service" || true; fi
        if command -v update-rc.d >/dev/null; then update-rc.d "$service" disable || true; fi
        ;;
    esac
done
'

apt_update() {
    say "packages: refreshing the package lists"
    # shellcheck disable=SC2086  # the prefix is one word or two
    $1 apt-get -q -o DPkg::Lock::Timeout=300 update >>"$2" 2>&1
}

# ensure_packages PURPOSE PACKAGE…  installs what is missing. Returns 1, with the reason said, when it cannot.
ensure_packages() {
    local purpose=$1 log as_root
    shift
    have dpkg-query || {
        say "packages: this is not Debian; install the equivalents of: $*"
        return 1
    }
    local missing
    mapfile -t missing < <(missing_packages "$@")
    [ "${#missing[@]}" -gt 0 ] || return 0
    as_root=$(root_prefix) || {
        say "packages: missing ($purpose): ${missing[*]}; run as root: apt-get install ${missing[*]}"
        return 1
    }
    say "packages: installing ($purpose): ${missing[*]}"
    log=$(mktemp)
    if apt_lists_are_empty; then
        apt_update "$as_root" "$log" || say "packages: the lists could not be refreshed; trying with what there is"
    fi
    if ! install_now "$as_root" "$log" "${missing[@]}"; then
        # Lists that are older than the archive name versions that are gone.
        if ! { apt_update "$as_root" "$log" && install_now "$as_root" "$log" "${missing[@]}"; }; then
            tail -n 20 "$log" >&2
            ! grep -q 'Temporary failure resolving\|Could not resolve\|Could not connect\|Unable to connect' "$log" ||
                say "packages: Debian's archive cannot be reached: is there a network, or a proxy to name in http_proxy?"
            rm -f "$log"
            say "packages: installing ${missing[*]} failed"
            return 1
        fi
    fi
    rm -f "$log"
}

install_now() {
    local as_root=$1 log=$2
    shift 2
    # shellcheck disable=SC2086
    $as_root sh -c "$INSTALL_SCRIPT" install "$POLICY_FILE" "${PACKAGED_SERVICES[*]}" "$@" >>"$log" 2>&1
}
