#!/usr/bin/env bash
# The same as prepNet.sh for machines where vfio-pci cannot have the NIC (no IOMMU, or reserved memory regions as on
# some HP servers): the NIC is bound to igb_uio, or to uio_pci_generic when that module is not there.
set -euo pipefail
ROOT=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
ME=./prepNet.uio.sh
# shellcheck disable=SC2034  # read by scripts/net-pci.sh
PCI_DRIVERS=(igb_uio uio_pci_generic)
# shellcheck source=scripts/common.sh
. "$ROOT/scripts/common.sh"
# shellcheck source=scripts/net.sh
. "$ROOT/scripts/net.sh"
net_main "$@"
