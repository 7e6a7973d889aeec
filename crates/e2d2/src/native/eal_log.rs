//! DPDK's log, passed on to the `log` crate, with its latest complaints kept for error messages.
#![allow(unsafe_code)] // A C stdio stream with a Rust write function.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};
use std::{ptr, slice};

use dpdk_sys as sys;

/// How many lines of complaint are kept; a failing start writes two or three.
const KEPT: usize = 8;

/// Complaints that are none: net_memif says this wherever no secondary process is possible, which is everywhere here.
const HARMLESS: [&str; 1] = ["Failed to register mp action callback"];

/// Receives what DPDK logs. Lives for the rest of the process, because DPDK may log until it ends.
#[derive(Debug, Default)]
pub(super) struct EalLog {
    complaints: Mutex<VecDeque<String>>,
}

impl EalLog {
    /// Makes DPDK write here instead of to standard error and syslog; to be called before `rte_eal_init`.
    pub(super) fn install() -> &'static Self {
        let this: &'static Self = Box::leak(Box::default());
        let functions = sys::cookie_io_functions_t {
            write: Some(write),
            ..Default::default()
        };
        // SAFETY: the cookie lives forever and `write` accepts it; a null stream makes DPDK keep its own.
        unsafe {
            let stream = sys::fopencookie(ptr::from_ref(this).cast_mut().cast(), c"w".as_ptr(), functions);
            if !stream.is_null() {
                sys::rte_openlog_stream(stream.cast());
            }
        }
        this
    }

    /// Forgets the complaints so far, so that [`Self::complaints`] tells of what comes now.
    pub(super) fn forget(&self) {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Warnings and errors since [`Self::forget`], joined; starts with `"; "` if there are any.
    pub(super) fn complaints(&self) -> String {
        let lines = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().fold(String::new(), |text, line| text + "; " + line)
    }

    fn line(&self, level: c_int, line: &str) {
        let level = match u32::try_from(level).unwrap_or_default() {
            0..=sys::RTE_LOG_ERR => log::Level::Error,
            sys::RTE_LOG_WARNING => log::Level::Warn,
            sys::RTE_LOG_NOTICE | sys::RTE_LOG_INFO => log::Level::Info,
            _ => log::Level::Debug,
        };
        let level = if HARMLESS.iter().any(|text| line.contains(text)) {
            log::Level::Debug
        } else {
            level
        };
        log::log!(target: "dpdk", level, "{line}");
        if level <= log::Level::Warn {
            let mut lines = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() == KEPT {
                lines.pop_front();
            }
            lines.push_back(line.to_owned());
        }
    }
}

/// DPDK flushes after each message, so that a write holds whole lines and the level is the one of this thread's message.
unsafe extern "C" fn write(cookie: *mut c_void, text: *const c_char, length: usize) -> sys::__ssize_t {
    // SAFETY: `cookie` is the leaked `EalLog`; stdio passes `length` readable bytes at `text`.
    let (log, text) = unsafe {
        (
            &*cookie.cast::<EalLog>(),
            slice::from_raw_parts(text.cast::<u8>(), length),
        )
    };
    // SAFETY: reads a per-thread variable.
    let level = unsafe { sys::rte_log_cur_msg_loglevel() };
    for line in String::from_utf8_lossy(text)
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        log.line(level, line);
    }
    length as sys::__ssize_t
}
