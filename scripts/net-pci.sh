# shellcheck shell=bash
# A real NIC: hugepages, the driver that gives it to user space, and the Linux end of its cable.
# Sourced by net.sh, whose variables and step() it uses.

# 07:00.0 → 0000:07:00.0
full_bdf() {
    if [[ $1 =~ ^[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$ ]]; then printf '0000:%s' "${1,,}"; else printf '%s' "${1,,}"; fi
}

# Every Linux interface that carries a default route, and what it stands on (bond members, VLAN and bridge parents).
default_route_interfaces() {
    { ip -4 route show default; ip -6 route show default; } 2>/dev/null |
        sed -n 's/.* dev \([^ ]*\).*/\1/p' | sort -u | while read -r interface; do with_lower "$interface"; done | sort -u
}

with_lower() {
    local lower
    printf '%s\n' "$1"
    for lower in "/sys/class/net/$1"/lower_*; do
        [ -e "$lower" ] && with_lower "${lower##*/lower_}"
    done
    if [ -d "/sys/class/net/$1/brif" ]; then
        for lower in "/sys/class/net/$1/brif"/*; do
            [ -e "$lower" ] && with_lower "${lower##*/}"
        done
    fi
    return 0
}

# Is the PCI device an ancestor of the interface? (A virtio NIC has a virtio bus between the two.)
interface_is_on() {
    local path
    path=$(readlink -f "/sys/class/net/$1/device" 2>/dev/null) || return 1
    case $path/ in
    */"$2"/*) return 0 ;;
    *) return 1 ;;
    esac
}

# Refuses what must not be taken away from the machine. Runs before any step.
check_pci() {
    local bdf interface
    need_tools dpdk-devbind.py modprobe
    for bdf in "${PCI[@]}"; do
        [[ $bdf =~ ^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$ ]] || die "--pci '$bdf': expected an address such as 0000:07:00.0"
        for interface in $(default_route_interfaces); do
            ! interface_is_on "$interface" "$bdf" ||
                die "--pci $bdf: this is $interface, which carries the default route; it stays with the kernel"
        done
        [ -e "/sys/bus/pci/devices/$bdf" ] || absent "--pci $bdf: no such device (lspci -D lists them)"
        case $(cat "/sys/bus/pci/devices/$bdf/class" 2>/dev/null) in
        0x02* | '') ;;
        *) die "--pci $bdf: not a network device" ;;
        esac
    done
    for interface in "${LINUX_IF[@]}"; do
        ! default_route_interfaces | grep -qxF -- "$interface" ||
            die "--linux-if $interface: it carries the default route; it stays where it is"
        [ -e "/sys/class/net/$interface" ] || ip -n "$PREFIX-switch" link show dev "$interface" >/dev/null 2>&1 ||
            absent "--linux-if $interface: no such interface (ip link lists them)"
    done
}

# A dry run on another machine may name devices that are not here.
absent() { if [ "$DRY_RUN" = yes ]; then say "$1; a real run stops here"; else die "$1"; fi; }

current_driver() {
    local link
    link=$(readlink "/sys/bus/pci/devices/$1/driver" 2>/dev/null) || return 0
    printf '%s' "${link##*/}"
}

driver_file() { printf '%s/%s.driver' "$STATE_DIR" "$1"; }

reserve_hugepages() {
    local page_kb have_kb pages file=/proc/sys/vm/nr_hugepages
    [ "$HUGEPAGES_MB" -gt 0 ] || return 0
    page_kb=$(awk '/^Hugepagesize:/ {print $2}' /proc/meminfo)
    [ -n "$page_kb" ] || {
        say "this kernel has no hugepages: the engine runs on ordinary pages"
        return 0
    }
    have_kb=$(($(cat "$file") * page_kb))
    if [ "$have_kb" -lt $((HUGEPAGES_MB * 1024)) ]; then
        pages=$(((HUGEPAGES_MB * 1024 + page_kb - 1) / page_kb))
        if [ "$DRY_RUN" = no ] && [ ! -e "$STATE_DIR/hugepages" ]; then cat "$file" >"$STATE_DIR/hugepages"; fi
        put "$pages" "$file"
        if [ "$DRY_RUN" = no ] && [ "$(cat "$file")" -lt "$pages" ]; then
            say "only $(cat "$file") of $pages hugepages could be had: memory is fragmented; reserve them on the kernel's command line"
        fi
    fi
    grep -q ' hugetlbfs ' /proc/mounts || {
        step mkdir -p /dev/hugepages
        step mount -t hugetlbfs hugetlbfs /dev/hugepages
    }
}

# Loads the first of PCI_DRIVERS that this kernel has and that the devices can be bound to; sets DRIVER.
load_driver() {
    for DRIVER in "${PCI_DRIVERS[@]}"; do
        if [ -d "/sys/bus/pci/drivers/$DRIVER" ] || step modprobe --quiet "$DRIVER"; then
            check_iommu
            return 0
        fi
    done
    say "none of the drivers ${PCI_DRIVERS[*]} can be loaded: see \"On a NIC\" in docs/start.md"
    return 1
}

# vfio-pci needs an IOMMU, and a uio driver one that does not translate.
check_iommu() {
    local unsafe=/sys/module/vfio/parameters/enable_unsafe_noiommu_mode bdf type
    if [ "$DRIVER" = vfio-pci ]; then
        ! compgen -G '/sys/kernel/iommu_groups/*' >/dev/null || return 0
        if [ "$NOIOMMU" = no ]; then
            absent "no IOMMU: boot with intel_iommu=on iommu=pt (or amd_iommu=on), or use ./prepNet.uio.sh"
        elif [ "$DRY_RUN" = yes ] || [ -e "$unsafe" ]; then
            put 1 "$unsafe"
        else
            die "--noiommu: this kernel has no such mode (CONFIG_VFIO_NOIOMMU); use ./prepNet.uio.sh"
        fi
        return
    fi
    for bdf in "${PCI[@]}"; do
        type=$(cat "/sys/bus/pci/devices/$bdf/iommu_group/type" 2>/dev/null) || continue
        case $type in
        DMA*) absent "$bdf: $DRIVER behind an IOMMU that translates passes no packet: use ./prepNet.sh, or boot with iommu=pt" ;;
        esac
    done
}

# dpdk-devbind.py passes over an interface that is up and in the routing table, and calls that a success.
bind_to_user_space() {
    local bdf=$1 path
    for path in "/sys/bus/pci/devices/$bdf"/net/* "/sys/bus/pci/devices/$bdf"/virtio*/net/*; do
        [ ! -e "$path" ] || step ip link set "${path##*/}" down
    done
    step dpdk-devbind.py --bind="$DRIVER" "$bdf"
    [ "$DRY_RUN" = yes ] || [ "$(current_driver "$bdf")" = "$DRIVER" ] || {
        say "$bdf could not be bound to $DRIVER; dmesg says why"
        return 1
    }
}

connect_engine_pci() {
    local arm bdf old bridge
    reserve_hugepages
    for ((arm = 0; arm < ARMS; arm++)); do
        bdf=${PCI[arm]} bridge=br$arm
        old=$(current_driver "$bdf")
        if [ "$old" != "$DRIVER" ]; then
            [ "$DRY_RUN" = yes ] || printf '%s\n' "$old" >"$(driver_file "$bdf")"
            bind_to_user_space "$bdf"
        fi
        step ip link set "${LINUX_IF[arm]}" netns "$PREFIX-switch"
        step ip -n "$PREFIX-switch" link set "${LINUX_IF[arm]}" mtu "$MTU" master "$bridge" up
    done
}

# Gives the Linux interface to the host, the NIC back to the driver it had, and the hugepages to the kernel. In this order:
# the NIC's driver takes the first free name, which must not be the Linux interface's.
disconnect_engine_pci() {
    local bdf interface file whole=0
    for interface in "${LINUX_IF[@]}"; do
        if ip -n "$PREFIX-switch" link show dev "$interface" >/dev/null 2>&1; then
            step ip -n "$PREFIX-switch" link set "$interface" nomaster || whole=1
            step ip -n "$PREFIX-switch" link set "$interface" netns 1 || {
                say "$interface could not be given back to the host under its name; ip link shows it under another"
                whole=1
            }
        fi
    done
    for bdf in "${PCI[@]}"; do
        file=$(driver_file "$bdf")
        [ -e "$file" ] || continue
        if [ -s "$file" ]; then
            step dpdk-devbind.py --bind="$(cat "$file")" "$bdf" || whole=1
        else
            step dpdk-devbind.py --unbind "$bdf" || whole=1
        fi
        step rm -f "$file"
    done
    if [ -e "$STATE_DIR/hugepages" ]; then
        put "$(cat "$STATE_DIR/hugepages")" /proc/sys/vm/nr_hugepages
        step rm -f "$STATE_DIR/hugepages"
    fi
    return "$whole"
}

pci_is_whole() {
    local report=$1 whole=0 bdf driver
    for bdf in "${PCI[@]}"; do
        driver=$(current_driver "$bdf")
        case " ${PCI_DRIVERS[*]} " in
        *" ${driver:-none} "*) ;;
        *) "$report" "$bdf is bound to ${driver:-no driver}, not to ${PCI_DRIVERS[*]}" && whole=1 ;;
        esac
    done
    return "$whole"
}
