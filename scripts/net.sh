# shellcheck shell=bash
# The network around the engine, for prepNet.sh and prepNet.uio.sh: arguments, state, and the three verbs.
# Sourced after common.sh by a script that has set PCI_DRIVERS to the kernel drivers it may bind a NIC to.
#
#     PREFIX-clients ── br0 ── engine's port 0          one-armed: clients and servers share the engine's segment
#     PREFIX-servers ──┘
#
#     PREFIX-clients ── br0 ── engine's port 0          two-armed: one segment each, the engine between them
#     PREFIX-servers ── br1 ── engine's port 1
#
# br0 and br1 live in PREFIX-switch, so that a capture or a lossy link can stand between the engine and a Linux stack
# without either of them noticing. The engine's port is a veth end in PREFIX-engine (--soft), or a NIC at the other end
# of a real cable (--pci), in which case the Linux interface of that cable (--linux-if) is the bridge's uplink.

# shellcheck source=scripts/net-soft.sh
. "$ROOT/scripts/net-soft.sh"
# shellcheck source=scripts/net-pci.sh
. "$ROOT/scripts/net-pci.sh"

STATE_DIR=/run/proxyengine
# What is run on a rig by programs keeps its files in a folder that goes away with the rig.
files_folder() { printf '/tmp/proxyengine-%s' "$PREFIX"; }

DRY_RUN=no
QUIET=no
PREFIX=pe
MODE=
ARMS=1
MTU=1500
PCI=()
LINUX_IF=()
HUGEPAGES_MB=1024
NOIOMMU=no

usage() {
    cat <<USAGE
usage: $ME up     --soft [--two-armed] [--mtu N] [--prefix NAME]
       $ME up     --pci BDF --linux-if IF [--pci BDF --linux-if IF --two-armed] [--mtu N] [--hugepages MIB] [--noiommu]
       $ME down   [--prefix NAME]
       $ME status [--prefix NAME]

Lays the cable between the engine and the Linux clients and servers that it is tried with.
  --soft          crossed cable of veth pairs; the engine runs in the namespace NAME-engine on port pe-eng0 (and pe-eng1)
  --pci BDF       the engine's NIC, e.g. 0000:07:00.0: taken from its kernel driver and bound to ${PCI_DRIVERS[*]}
  --linux-if IF   the Linux interface at the other end of that NIC's cable: moved into the namespace NAME-switch
  --two-armed     clients on one port of the engine, servers on the other (without it both are on the same)
  --mtu N         MTU of every link (default 1500)
  --hugepages M   MiB of hugepages to have at least (default 1024; 0 leaves them alone; --pci only)
  --noiommu       allow vfio-pci on a machine without an IOMMU: the NIC can then write to all of memory
  --prefix NAME   name of this rig, up to 32 letters, digits or '-' (default pe); rigs of different names do not meet
  --dry-run       print the steps, do nothing
  --quiet         do not print the steps

status ends with 0 when the rig is up and whole, 1 when there is none, 2 when a part of it is missing.
USAGE
}

# Runs one step, after printing it. With --dry-run it is printed only. What a step prints itself is of no interest.
step() {
    if [ "$QUIET" = no ] || [ "$DRY_RUN" = yes ]; then printf '+ %s\n' "$*"; fi
    [ "$DRY_RUN" = yes ] || "$@" >/dev/null
}

# Writes VALUE to FILE as one step.
put() {
    if [ "$QUIET" = no ] || [ "$DRY_RUN" = yes ]; then printf '+ echo %s > %s\n' "$1" "$2"; fi
    [ "$DRY_RUN" = yes ] || printf '%s\n' "$1" >"$2"
}

need_root() {
    [ "$DRY_RUN" = yes ] || is_root || die "$1 needs root"
}

need_tools() {
    local tool missing=()
    [ "$DRY_RUN" = no ] || return 0
    for tool in "$@"; do
        have "$tool" || missing+=("$tool")
    done
    [ "${#missing[@]}" -eq 0 ] || die "missing: ${missing[*]} (Debian packages: iproute2 ethtool dpdk kmod)"
}

parse_arguments() {
    [ $# -gt 0 ] || {
        usage >&2
        exit 2
    }
    VERB=$1
    shift
    case $VERB in
    up | down | status) ;;
    -h | --help | help)
        usage
        exit 0
        ;;
    *) die "unknown verb '$VERB': expected up, down or status (--help tells more)" ;;
    esac
    while [ $# -gt 0 ]; do
        case $1 in
        --pci | --linux-if | --prefix | --mtu | --hugepages) [ $# -gt 1 ] || die "$1 needs a value" ;;
        esac
        case $1 in
        --soft) set_mode soft ;;
        --pci) set_mode pci && PCI+=("$(full_bdf "$2")") && shift ;;
        --linux-if) LINUX_IF+=("$2") && shift ;;
        --two-armed) ARMS=2 ;;
        --prefix) PREFIX=$2 && shift ;;
        --mtu) MTU=$2 && shift ;;
        --hugepages) HUGEPAGES_MB=$2 && shift ;;
        --noiommu) NOIOMMU=yes ;;
        --dry-run) DRY_RUN=yes ;;
        --quiet) QUIET=yes ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) die "unknown option '$1' (--help lists them)" ;;
        esac
        shift
    done
}

set_mode() {
    [ -z "$MODE" ] || [ "$MODE" = "$1" ] || die "--soft and --pci exclude each other"
    MODE=$1
}

check_arguments() {
    [[ $PREFIX =~ ^[A-Za-z0-9][A-Za-z0-9-]{0,31}$ ]] || die "--prefix '$PREFIX': expected 1 to 32 letters, digits or '-'"
    if ! [[ $MTU =~ ^[0-9]{1,5}$ ]] || [ "$MTU" -lt 1280 ] || [ "$MTU" -gt 9000 ]; then
        die "--mtu '$MTU': expected 1280 to 9000"
    fi
    [[ $HUGEPAGES_MB =~ ^[0-9]{1,7}$ ]] || die "--hugepages '$HUGEPAGES_MB': expected a number of MiB"
    [ "$VERB" = up ] || return 0
    [ -n "$MODE" ] || die "up: which cable? --soft, or --pci BDF --linux-if IF"
    if [ "$MODE" = soft ]; then
        [ "${#LINUX_IF[@]}" -eq 0 ] || die "--linux-if goes with --pci"
    else
        [ "${#PCI[@]}" -eq "$ARMS" ] || die "${#PCI[@]} × --pci given: expected $ARMS"
        [ "${#LINUX_IF[@]}" -eq "$ARMS" ] || die "${#LINUX_IF[@]} × --linux-if given: expected $ARMS, one per --pci"
    fi
}

state_file() { printf '%s/%s.rig' "$STATE_DIR" "$PREFIX"; }

# What `up` was asked for, so that `down` and `status` need no arguments and a second `up` can tell whether it is the same.
rig_description() { printf 'MODE=%s ARMS=%s MTU=%s PCI=(%s) LINUX_IF=(%s)' "$MODE" "$ARMS" "$MTU" "${PCI[*]}" "${LINUX_IF[*]}"; }

save_state() {
    [ "$DRY_RUN" = no ] || return 0
    mkdir -p "$STATE_DIR"
    rig_description >"$(state_file)"
}

# Sets MODE, ARMS, MTU, PCI and LINUX_IF to what stands in the state file. Root alone can write that directory.
load_state() {
    [ -r "$(state_file)" ] || return 1
    # shellcheck disable=SC1090
    . "$(state_file)"
}

verb_up() {
    need_root up
    need_tools ip ethtool
    [ "$MODE" = soft ] || check_pci
    local wanted
    wanted=$(rig_description)
    if [ "$DRY_RUN" = no ] && [ -e "$(state_file)" ]; then
        if [ "$(cat "$(state_file)")" = "$wanted" ] && rig_is_whole; then
            [ "$QUIET" = yes ] || printf '%s: already up\n' "$PREFIX"
            return 0
        fi
        load_state
        tear_down || true
        eval "$wanted"
    fi
    trap undo_up EXIT
    trap 'exit 130' INT TERM HUP
    save_state
    [ "$MODE" = soft ] || load_driver
    raise_segments
    if [ "$MODE" = soft ]; then connect_engine_soft; else connect_engine_pci; fi
    trap - EXIT INT TERM HUP
    [ "$QUIET" = yes ] || [ "$DRY_RUN" = yes ] || print_addresses
}

# Half a rig is none: what was made before a step failed goes away again.
undo_up() {
    local status=$?
    say "up failed; taking down what was made"
    tear_down || true
    exit "$status"
}

verb_down() {
    need_root down
    need_tools ip
    if ! load_state && ! any_namespace && [ ! -e "$(files_folder)" ]; then
        [ "$QUIET" = yes ] || printf '%s: already down\n' "$PREFIX"
        return 0
    fi
    tear_down
}

verb_status() {
    if ! load_state; then
        if any_namespace; then
            printf '%s: damaged: namespaces without a state file; "%s down" removes them\n' "$PREFIX" "$ME"
            exit 2
        fi
        printf '%s: down\n' "$PREFIX"
        exit 1
    fi
    if rig_is_whole say_part; then
        printf '%s: up (%s)\n' "$PREFIX" "$(rig_description)"
        print_addresses
    else
        printf '%s: damaged; "%s down" and "%s up" mend it\n' "$PREFIX" "$ME" "$ME"
        exit 2
    fi
}

say_part() { printf '%s: missing: %s\n' "$PREFIX" "$*"; }

# Goes through all of it whatever fails, and says at the end whether something did.
tear_down() {
    local whole=0
    [ "$MODE" != pci ] || disconnect_engine_pci || whole=1
    remove_segments
    step rm -f "$(state_file)"
    [ ! -d "$STATE_DIR" ] || step rmdir --ignore-fail-on-non-empty "$STATE_DIR"
    [ ! -e "$(files_folder)" ] || step rm -rf "$(files_folder)"
    return "$whole"
}

net_main() {
    parse_arguments "$@"
    check_arguments
    "verb_$VERB"
}
