#!/usr/bin/env bash
# The cable between the engine and the Linux stacks it is tried with: in software, or on a NIC bound to vfio-pci.
set -euo pipefail
ROOT=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
ME=./prepNet.sh
# shellcheck disable=SC2034  # read by scripts/net-pci.sh
PCI_DRIVERS=(vfio-pci)
# shellcheck source=scripts/common.sh
. "$ROOT/scripts/common.sh"
# shellcheck source=scripts/net.sh
. "$ROOT/scripts/net.sh"
net_main "$@"
