//! Generates the bindings from the installed DPDK headers and tells cargo what to link.
//!
//! Linking is shared: the EAL then loads every packaged poll-mode driver from its plugin directory by itself, so that a
//! NIC needs no rebuild. A missing package ends the build with one sentence that names it.

use std::env;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::process;

/// The Debian packages that the build needs; every failure below points here.
const PACKAGES: &str = "apt-get install libdpdk-dev dpdk libclang-14-dev pkg-config";

/// Functions bound one by one: `rte_eth_*` and `rte_flow_*` as families, the rest by name.
const FUNCTIONS: &[&str] = &[
    "rte_eal_(init|cleanup|alarm_set|hotplug_add|hotplug_remove|has_hugepages|iova_mode|get_runtime_dir)",
    "rte_(strerror|socket_id|thread_register|thread_unregister|get_main_lcore)",
    "rte_(log_set_global_level|log_set_level_pattern|openlog_stream|log_cur_msg_loglevel|log_cur_msg_logtype)",
    "rte_version",
    "rte_eth_.*",
    "rte_flow_.*",
    "rte_pktmbuf_(pool_create|pool_create_by_ops|free_bulk|linearize)",
    "__rte_pktmbuf_(linearize|read)",
    "rte_mempool_(free|lookup|avail_count|in_use_count|walk|register_ops|op_populate_default)",
    "rte_ring_(create|free|lookup)",
    "rte_vdev_(init|uninit)",
    "rte_dev_event_callback_register",
    "rte_thash_.*",
    "(dlopen|dlsym|dlclose|fopencookie|fclose|setvbuf)",
];

const TYPES: &[&str] = &[
    "rte_eth_.*",
    "rte_flow_.*",
    "rte_mbuf",
    "rte_mempool.*",
    "rte_ring",
    "rte_iova_mode",
];

const VARIABLES: &[&str] = &[
    "rte_eth_fp_ops",
    "rte_mempool_ops_table",
    "RTE_(EAL_PMD_PATH|MAX_LCORE|MAX_ETHPORTS|PKTMBUF_HEADROOM|MEMPOOL_.*|CACHE_LINE_SIZE|VER_.*)",
    "RTE_ETH_.*",
    "RTE_MBUF_.*",
    "RTE_LOG_.*",
    "RTE_RING_.*",
    "RING_F_.*",
    "RTE_FLOW_.*",
    "RTLD_(LAZY|NOLOAD)",
    "DPDK_.*",
];

/// Packed structures with aligned members, which Rust cannot express (E0588); nothing here looks inside them.
const OPAQUE: &[&str] = &[
    "rte_arp_hdr",
    "rte_arp_ipv4",
    "rte_gtp_psc_generic_hdr",
    "rte_l2tpv2_combined_msg_hdr",
];

fn main() {
    println!("cargo:rerun-if-changed=wrapper.h");
    println!("cargo:rerun-if-changed=build.rs");

    // Probed without printing: only the libraries used here are linked, not the thirty that `--libs` lists.
    let dpdk = pkg_config::Config::new()
        .range_version("22.11".."22.12")
        .cargo_metadata(false)
        .probe("libdpdk")
        .unwrap_or_else(|_| fail("DPDK 22.11 was not found by pkg-config"));
    for directory in &dpdk.link_paths {
        println!("cargo:rustc-link-search=native={}", directory.display());
    }
    for library in [
        "eal", "ethdev", "mbuf", "mempool", "ring", "hash", "net_ring", "bus_vdev",
    ] {
        println!("cargo:rustc-link-lib=dylib=rte_{library}");
    }

    let mut builder = bindgen::Builder::default()
        .header("wrapper.h")
        // As `pkg-config --cflags` has it: every DPDK header relies on it.
        .clang_args(["-include", "rte_config.h"])
        .clang_args(dpdk.include_paths.iter().map(|path| format!("-I{}", path.display())))
        .use_core()
        .generate_comments(false)
        .prepend_enum_name(false)
        .derive_default(true)
        .merge_extern_blocks(true);
    // Debian builds DPDK for this baseline; the inline headers refuse less than SSE4.2.
    if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        builder = builder.clang_arg("-march=corei7");
    }
    for pattern in FUNCTIONS {
        builder = builder.allowlist_function(pattern);
    }
    for pattern in TYPES {
        builder = builder.allowlist_type(pattern);
    }
    for pattern in VARIABLES {
        builder = builder.allowlist_var(pattern);
    }
    for pattern in OPAQUE {
        builder = builder.opaque_type(pattern);
    }

    // bindgen panics when it cannot load libclang; the hook is silenced so that one sentence remains.
    panic::set_hook(Box::new(|_| ()));
    let bindings = match panic::catch_unwind(AssertUnwindSafe(|| builder.generate())) {
        Ok(Ok(bindings)) => bindings,
        Ok(Err(error)) => fail(&format!("bindgen could not read the DPDK headers ({error})")),
        Err(_) => fail("libclang could not be loaded by bindgen"),
    };
    let _ = panic::take_hook();

    let target = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("bindings.rs");
    if let Err(error) = bindings.write_to_file(&target) {
        fail(&format!("{} could not be written ({error})", target.display()));
    }
}

/// Ends the build with `what` and the packages that cure it.
fn fail(what: &str) -> ! {
    eprintln!("dpdk-sys: {what}; on Debian 12: {PACKAGES}");
    process::exit(1)
}
