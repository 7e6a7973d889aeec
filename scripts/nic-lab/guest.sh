#!/usr/bin/env bash
# Runs in the emulated machine: does what the host asks for in /lab/command.N, one after the other, and leaves the exit code
# in /lab/code.N. What is printed goes to /lab/output.N.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
modules=$(sed -n 's/.*lab.modules=\([^ ]*\).*/\1/p' /proc/cmdline)
kernel=$(uname -r)
mkdir -p "/lib/modules/$kernel"
mount --bind "$modules/lib/modules/$kernel" "/lib/modules/$kernel"
ip link set lo up
number=1
lifetime=$(sed -n 's/.*lab.lifetime=\([0-9]*\).*/\1/p' /proc/cmdline)
# A machine whose maker was killed ends by itself.
(sleep "$lifetime" && echo o >/proc/sysrq-trigger) &
touch /lab/up
while true; do
    until [ -e "/lab/command.$number" ]; do sleep 0.05; done
    bash "/lab/command.$number" >"/lab/output.$number" 2>&1 </dev/null
    echo $? >"/lab/code.part"
    mv /lab/code.part "/lab/code.$number"
    number=$((number + 1))
done
