//! Devices that are taken away while they are open.
//!
//! The kernel asks a process that has a device from vfio-pci to let go of it, and waits until it does; the EAL hears of that
//! (`pci_vfio_req_handler` of DPDK 22.11) and tells whoever has registered. A device of a uio driver goes without being asked.
#![allow(unsafe_code)] // FFI: registers a callback of the EAL.

use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use dpdk_sys as sys;

/// Whether a device is to go, or has gone.
#[derive(Debug)]
pub(super) struct Removal {
    /// Set by a thread of the EAL's that may still be at it when the port is closed: one byte a device, never freed.
    asked_for: &'static AtomicBool,
    /// Where the kernel shows the device.
    shown_at: PathBuf,
}

impl Removal {
    /// Watches over a PCI device; none if the kernel does not show it under this name.
    pub(super) fn watch(address: &CStr) -> Option<Self> {
        let shown_at = PathBuf::from("/sys/bus/pci/devices").join(address.to_str().ok()?);
        if !shown_at.exists() {
            return None;
        }
        let asked_for: &'static AtomicBool = Box::leak(Box::default());
        let argument = std::ptr::from_ref(asked_for).cast_mut().cast::<c_void>();
        // SAFETY: the name is NUL-terminated and copied; the argument lives for ever, and is only used as what it is.
        let result = unsafe { sys::rte_dev_event_callback_register(address.as_ptr(), Some(note), argument) };
        if result < 0 {
            log::warn!(
                "{}: nobody will say when it is to be taken away: {result}",
                shown_at.display()
            );
        }
        Some(Self { asked_for, shown_at })
    }

    /// Whether the kernel wants the device back, or has taken it. Asks the file system: not for the packet path.
    pub(super) fn is_due(&self) -> bool {
        self.asked_for.load(Ordering::Relaxed) || !self.shown_at.exists()
    }
}

/// Called by the EAL's interrupt thread.
unsafe extern "C" fn note(_: *const c_char, event: sys::rte_dev_event_type, argument: *mut c_void) {
    if event == sys::RTE_DEV_EVENT_REMOVE {
        // SAFETY: what `watch` has passed.
        unsafe { (*argument.cast::<AtomicBool>()).store(true, Ordering::Relaxed) };
    }
}
