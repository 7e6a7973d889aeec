# shellcheck shell=bash
# Namespaces, bridges, addresses and veth pairs. Sourced by net.sh, whose variables and step() it uses.
#
# Every interface is made inside the namespace it belongs to: the host's own namespace never sees one.

# Addresses of the rig. config/demo.toml, crates/rig and the README use the same; crates/rig has a test for that.
CLIENT_NET4=10.77.0 CLIENT_NET6=fd77:
SERVER_NET4=10.77.1 SERVER_NET6=fd77:0:0:1:
ENGINE_HOST=1
CLIENT_HOSTS=(101 102 103 104)
SERVER_HOSTS=(11 12 13)
# Names that the clients resolve to the engine; each selects the server of the same rank.
HOST_NAMES=(one.test two.test three.test)

namespaces() { printf '%s\n' "$PREFIX-engine" "$PREFIX-clients" "$PREFIX-servers" "$PREFIX-switch"; }

namespace_exists() { ip netns list 2>/dev/null | grep -q -E "^$1( |\$)"; }

any_namespace() {
    local name
    for name in $(namespaces); do
        if namespace_exists "$name"; then return 0; fi
    done
    return 1
}

# The segment that the servers are on: the clients' own, or the second one.
server_net4() { if [ "$ARMS" = 2 ]; then echo "$SERVER_NET4"; else echo "$CLIENT_NET4"; fi; }
server_net6() { if [ "$ARMS" = 2 ]; then echo "$SERVER_NET6"; else echo "$CLIENT_NET6"; fi; }
server_bridge() { if [ "$ARMS" = 2 ]; then echo br1; else echo br0; fi; }

# A namespace without IPv6 noise: no router solicitations, no duplicate address detection (it delays every address).
make_namespace() {
    local name=$1 ipv6=$2
    step ip netns add "$name"
    step ip netns exec "$name" sysctl --quiet --write \
        net.ipv6.conf.all.disable_ipv6="$((1 - ipv6))" net.ipv6.conf.default.disable_ipv6="$((1 - ipv6))" \
        net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.default.accept_ra=0 net.ipv6.conf.default.router_solicitations=0 \
        net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
    step ip -n "$name" link set lo up
}

# Frames must arrive segmented to the MTU, as they would on a wire. Checksums are left to the device, as Linux does by default
# on virtual interfaces; what the engine sends is verified (rx off).
offloads_off() {
    step ip netns exec "$1" ethtool -K "$2" rx off sg off tso off gso off gro off
}

make_bridge() {
    step ip -n "$PREFIX-switch" link add "$1" type bridge stp_state 0 forward_delay 0 mcast_snooping 0
    step ip -n "$PREFIX-switch" link set "$1" mtu "$MTU" up
}

# plug NAMESPACE INTERFACE MAC BRIDGE BRIDGE-PORT: a cable from an interface in a namespace to a port of a bridge.
plug() {
    local namespace=$1 interface=$2 mac=$3 bridge=$4 port=$5
    step ip -n "$namespace" link add "$interface" address "$mac" mtu "$MTU" type veth \
        peer name "$port" mtu "$MTU" netns "$PREFIX-switch"
    offloads_off "$namespace" "$interface"
    offloads_off "$PREFIX-switch" "$port"
    step ip -n "$PREFIX-switch" link set "$port" master "$bridge" up
    step ip -n "$namespace" link set "$interface" up
}

add_addresses() {
    local namespace=$1 net4=$2 net6=$3 host
    shift 3
    for host in "$@"; do
        step ip -n "$namespace" address add "$net4.$host/24" dev eth0
        step ip -n "$namespace" address add "$net6:$host/64" dev eth0 nodad
    done
}

# Names for the clients: `ip netns exec` shows /etc/netns/NAME/hosts as /etc/hosts.
write_hosts() {
    local directory=/etc/netns/$PREFIX-clients
    step mkdir -p "$directory"
    put "$(printf '127.0.0.1 localhost\n::1 localhost\n%s %s\n%s %s' \
        "$CLIENT_NET4.$ENGINE_HOST" "${HOST_NAMES[*]}" "$CLIENT_NET6:$ENGINE_HOST" "${HOST_NAMES[*]}")" "$directory/hosts"
}

# Clients and servers on their bridges; the engine's ports are plugged in afterwards.
raise_segments() {
    local name
    for name in $(namespaces); do
        case $name in
        # The engine's interface is the engine's alone: a kernel that speaks IPv6 on it would answer beside it.
        *-engine | *-switch) make_namespace "$name" 0 ;;
        *) make_namespace "$name" 1 ;;
        esac
    done
    make_bridge br0
    [ "$ARMS" = 1 ] || make_bridge br1
    plug "$PREFIX-clients" eth0 02:00:00:77:00:0c br0 clients
    plug "$PREFIX-servers" eth0 02:00:00:77:00:0d "$(server_bridge)" servers
    add_addresses "$PREFIX-clients" "$CLIENT_NET4" "$CLIENT_NET6" "${CLIENT_HOSTS[@]}"
    add_addresses "$PREFIX-servers" "$(server_net4)" "$(server_net6)" "${SERVER_HOSTS[@]}"
    if [ "$ARMS" = 2 ]; then
        step ip -n "$PREFIX-clients" route add default via "$CLIENT_NET4.$ENGINE_HOST"
        step ip -n "$PREFIX-clients" route add default via "$CLIENT_NET6:$ENGINE_HOST"
        step ip -n "$PREFIX-servers" route add default via "$SERVER_NET4.$ENGINE_HOST"
        step ip -n "$PREFIX-servers" route add default via "$SERVER_NET6:$ENGINE_HOST"
    fi
    write_hosts
}

connect_engine_soft() {
    plug "$PREFIX-engine" pe-eng0 02:00:00:77:00:01 br0 engine0
    [ "$ARMS" = 1 ] || plug "$PREFIX-engine" pe-eng1 02:00:00:77:01:01 br1 engine1
}

# Ends what still runs in a namespace, politely first; only processes that were started in it are there.
end_processes() {
    local pids
    pids=$(ip netns pids "$1" 2>/dev/null) || return 0
    [ -n "$pids" ] || return 0
    # shellcheck disable=SC2086
    step kill -TERM $pids 2>/dev/null || true
    local tries
    for ((tries = 0; tries < 20; tries++)); do
        [ -n "$(ip netns pids "$1" 2>/dev/null)" ] || return 0
        [ "$DRY_RUN" = no ] || return 0
        sleep 0.1
    done
    pids=$(ip netns pids "$1" 2>/dev/null) || return 0
    # shellcheck disable=SC2086
    [ -z "$pids" ] || step kill -KILL $pids 2>/dev/null || true
}

remove_segments() {
    local name
    # Some tests add a host behind the servers, or behind two routers: crates/rig/src/far.rs, routers.rs.
    for name in $(namespaces) "$PREFIX-far" "$PREFIX-router1" "$PREFIX-router2"; do
        namespace_exists "$name" || continue
        end_processes "$name"
        step ip netns delete "$name" || true
    done
    if [ -d "/etc/netns/$PREFIX-clients" ]; then
        step rm -r "/etc/netns/$PREFIX-clients"
        step rmdir --ignore-fail-on-non-empty /etc/netns
    fi
}

# Is everything there that `up` made? Calls $1, if given, with each part that is not.
rig_is_whole() {
    local report=${1:-true} whole=0 name bridge port
    for name in $(namespaces); do
        namespace_exists "$name" || { "$report" "namespace $name" && whole=1; }
    done
    for port in engine0:br0 clients:br0 "servers:$(server_bridge)" $([ "$ARMS" = 1 ] || echo engine1:br1); do
        bridge=${port#*:} port=${port%:*}
        if [ "$MODE" = pci ]; then
            case $port in
            engine0) port=${LINUX_IF[0]} ;;
            engine1) port=${LINUX_IF[1]} ;;
            esac
        fi
        bridge_port_is_up "$port" "$bridge" || { "$report" "port $port of $bridge" && whole=1; }
    done
    [ "$MODE" = soft ] || pci_is_whole "$report" || whole=1
    return "$whole"
}

bridge_port_is_up() { ip -n "$PREFIX-switch" link show dev "$1" up 2>/dev/null | grep -q " master $2 "; }

print_addresses() {
    local hosts
    printf '  engine   %s.%s  %s:%s' "$CLIENT_NET4" "$ENGINE_HOST" "$CLIENT_NET6" "$ENGINE_HOST"
    [ "$ARMS" = 1 ] || printf '   and towards the servers   %s.%s  %s:%s' "$SERVER_NET4" "$ENGINE_HOST" "$SERVER_NET6" "$ENGINE_HOST"
    hosts=$(IFS=,; echo "${CLIENT_HOSTS[*]}")
    printf '\n  clients  %s.{%s}  %s:{%s}   in %s-clients\n' "$CLIENT_NET4" "$hosts" "$CLIENT_NET6" "$hosts" "$PREFIX"
    hosts=$(IFS=,; echo "${SERVER_HOSTS[*]}")
    printf '  servers  %s.{%s}  %s:{%s}   in %s-servers\n' "$(server_net4)" "$hosts" "$(server_net6)" "$hosts" "$PREFIX"
    if [ "$MODE" = soft ]; then
        printf '  engine runs with: ip netns exec %s-engine proxyengine run FILE   (port pe-eng0%s)\n' \
            "$PREFIX" "$([ "$ARMS" = 1 ] || echo ', pe-eng1')"
    else
        printf '  engine runs in the host on: %s\n' "${PCI[*]}"
    fi
}
