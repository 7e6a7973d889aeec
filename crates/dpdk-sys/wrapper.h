/* What dpdk-sys needs of DPDK 22.11; build.rs hands this to bindgen with an allowlist. */
#define ALLOW_EXPERIMENTAL_API
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include <rte_build_config.h>
#include <rte_bus_vdev.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_thash.h>
#include <rte_version.h>
