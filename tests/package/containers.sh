# shellcheck shell=sh
# Runs the images of packaging/containers/compose.yaml and crates/mmproxy/packaging/compose.yaml: the engine before three
# servers on a bridge, and mmproxy in the network of the first. All in namespaces that go away with this shell.
#
#     unshare --mount --net --pid --fork --kill-child sh containers.sh BUNDLES     with BUNDLES/proxyengine and BUNDLES/mmproxy
set -eu
bundles=$1
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs none /run
# crun takes one hierarchy of control groups, or the old ones, but not both.
mount -t cgroup2 none /sys/fs/cgroup

ip link add bridge type bridge
ip link set bridge up
# host NAME NUMBER: a namespace on the bridge.
host() {
    ip netns add "$1"
    ip link add "v$1" type veth peer name eth0 netns "$1"
    ip link set "v$1" master bridge up
    ip -n "$1" addr add "10.77.9.$2/24" dev eth0
    ip -n "$1" link set eth0 up
    ip -n "$1" link set lo up
}
host engine 2
host one 21
host two 22
host three 23
host client 30
ip netns exec engine sysctl -qw net.ipv4.ip_forward=0

for server in one two three; do
    ip netns exec "$server" nginx -p "$bundles" -c nginx.conf -g "pid /run/$server.pid;" &
done
# container NAME NAMESPACE: the program of an image, with that network.
container() {
    ip netns exec "$2" unshare --mount sh -c 'mount -t cgroup2 none /sys/fs/cgroup && exec "$@"' run \
        crun --root /run/crun --cgroup-manager=disabled run --bundle "$bundles/$1" "$1" >"$bundles/$1.log" 2>&1 &
}
container proxyengine engine
container mmproxy one

# What clients get: the server's address, and the client's as the server sees it.
for host in one two three; do
    ip netns exec client curl -sS --max-time 10 --retry 60 --retry-delay 1 --retry-all-errors \
        --resolve "$host.test:80:10.77.9.10" "http://$host.test/"
done
tries=0
until ip netns exec client socat /dev/null TCP:10.77.9.21:8443 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || { echo "mmproxy does not listen"; exit 1; }
    sleep 1
done
printf 'PROXY TCP4 203.0.113.7 198.51.100.9 4001 443\r\nGET / HTTP/1.0\r\n\r\n' |
    ip netns exec client socat -t 10 - TCP:10.77.9.21:8443 | tail -n 1

# What they may do, and that they end as they should.
for name in proxyengine mmproxy; do
    process=$(pgrep -o -x "$name")
    echo "$name" "$(sed -n 's/^\(Uid\|CapEff\|CapBnd\):\t\([0-9a-f]*\).*/\1=\2/p' "/proc/$process/status" | tr '\n' ' ')"
    kill -TERM "$process"
    tries=0
    while [ -d "/proc/$process" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 60 ] || { echo "$name does not end"; exit 1; }
        sleep 1
    done
done
