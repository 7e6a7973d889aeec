//! DPDK's environment abstraction layer: started once per process, cleaned up with its last user.
#![allow(unsafe_code)] // FFI: starting and ending the EAL.

use std::ffi::{CStr, CString, NulError, c_void};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::{fs, io, ptr, thread};

use dpdk_sys as sys;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::device;
use super::eal_args::{EalConfig, HugePages, Memory, arguments, choose_memory};
use super::eal_log::EalLog;
use super::host;

/// Why the EAL did not start.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum EalError {
    /// DPDK can be started once in the life of a process.
    #[error("DPDK was already started in this process, and can be started only once")]
    AlreadyStarted,
    /// A core that this process may not run on.
    #[error("core {core} is not among the CPUs that this process may run on ({allowed})")]
    NoSuchCore {
        /// The core that was asked for.
        core: usize,
        /// The cores there are.
        allowed: String,
    },
    /// Too few hugepages where they are a must.
    #[error("{needed_mib} MiB of free hugepages are needed and {free_mib} MiB are free: `{hint}`")]
    NoHugepages {
        /// How much is needed.
        needed_mib: u32,
        /// How much is free.
        free_mib: u64,
        /// The command that provides them.
        hint: String,
    },
    /// A PCI device that cannot be used as it is.
    #[error(transparent)]
    Device(#[from] device::DeviceError),
    /// An argument with a NUL byte.
    #[error("`{0}` contains a NUL byte")]
    Nul(String),
    /// `rte_eal_init` failed.
    #[error("DPDK did not start: {reason}{log}")]
    Init {
        /// `rte_strerror` of the reason.
        reason: String,
        /// What DPDK logged about it.
        log: String,
    },
    /// A thread could not be started or registered.
    #[error("a thread could not be {what}: {reason}")]
    Thread {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        reason: String,
    },
}

/// The running EAL; clones share it. It is cleaned up when the last clone, pool, port and queue is gone.
#[derive(Clone, Debug)]
pub struct Eal(Arc<Running>);

#[derive(Debug)]
struct Running {
    memory: Memory,
    log: &'static EalLog,
    runtime_directory: PathBuf,
    /// Pools that could not be freed because packets were still out; their memory must stay.
    pinned: AtomicUsize,
}

impl Eal {
    /// Starts the EAL.
    ///
    /// It starts on a short-lived thread of its own, so that the caller's CPU affinity stays what it was and no thread
    /// becomes an lcore unasked: every packet thread calls [`Eal::register_thread`].
    ///
    /// # Errors
    /// [`EalError`], each saying what to do.
    pub fn start(config: &EalConfig) -> Result<Self, EalError> {
        // DPDK itself is global to the process and cannot be initialised twice; this flag is about that, not about us.
        static STARTED: AtomicBool = AtomicBool::new(false);

        for pci in &config.pci {
            host::check_pci(pci)?;
        }
        let memory = choose_memory(config, &free_hugepages(Path::new("/sys/kernel/mm/hugepages")))?;
        let (main_core, own_cores) = cores(config)?;
        let arguments = arguments(config, &memory, main_core)
            .into_iter()
            .map(|argument| CString::new(argument.clone()).map_err(|_: NulError| EalError::Nul(argument)))
            .collect::<Result<Vec<_>, _>>()?;

        if STARTED.swap(true, Ordering::SeqCst) {
            return Err(EalError::AlreadyStarted);
        }
        let log = EalLog::install();
        let started = thread::Builder::new()
            .name("eal-init".to_owned())
            .spawn(move || {
                // The EAL's control threads inherit these CPUs; a failure leaves them on all, which is only less tidy.
                let _ = sched_setaffinity(None, &own_cores);
                initialise(arguments)
            })
            .map_err(|error| EalError::Thread {
                what: "started",
                reason: error.to_string(),
            })?
            .join();
        let runtime_directory = match started {
            Ok(Ok(directory)) => directory,
            Ok(Err(reason)) => {
                return Err(EalError::Init {
                    reason,
                    log: log.complaints(),
                });
            }
            Err(_) => {
                return Err(EalError::Init {
                    reason: "its thread panicked".to_owned(),
                    log: log.complaints(),
                });
            }
        };
        match &memory {
            Memory::Huge { mib } => log::info!("packet memory: {mib} MiB of hugepages"),
            Memory::Ordinary { mib, hint } => {
                log::warn!("packet memory: {mib} MiB of ordinary pages, which is slower; for hugepages: {hint}");
            }
        }
        Ok(Self(Arc::new(Running {
            memory,
            log,
            runtime_directory,
            pinned: AtomicUsize::new(0),
        })))
    }

    /// The EAL that all tests of a process share, started by the first: [`EalConfig::hermetic`]. It stays until the end.
    ///
    /// # Errors
    /// What [`Eal::start`] said to whoever came first.
    pub fn hermetic() -> Result<Self, EalError> {
        // Global like the EAL itself; tests have no owner that could hand it from one to the next.
        static SHARED: OnceLock<Result<Eal, EalError>> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(&EalConfig::hermetic())).clone()
    }

    /// What packet memory is made of.
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    /// Registers the calling thread with DPDK, which gives it its own cache in every pool.
    ///
    /// Without it everything works as well, but each packet taken or dropped costs an atomic operation on the pool's ring.
    /// The registration ends with the returned guard; a second one on the same thread changes nothing.
    ///
    /// # Errors
    /// [`EalError::Thread`] when DPDK has no id left (128 threads).
    pub fn register_thread(&self) -> Result<RegisteredThread, EalError> {
        let outermost = sys::thread::lcore_id() == sys::thread::LCORE_ID_ANY;
        if outermost {
            sys::thread::register().map_err(|errno| EalError::Thread {
                what: "registered with DPDK",
                reason: sys::thread::error_text(errno),
            })?;
        }
        Ok(RegisteredThread {
            outermost,
            _eal: self.clone(),
            _this_thread: PhantomData,
        })
    }

    /// Has the thread that DPDK has for interrupts and alarms run `body`, soon, and does not wait for it. Should the EAL end before,
    /// it never runs.
    ///
    /// # Errors
    /// [`EalError::Thread`] when there is no memory left, or no such thread.
    pub fn run_on_interrupt_thread(&self, body: impl FnOnce() + Send + 'static) -> Result<(), EalError> {
        // A pointer of one word for C: a boxed closure has two.
        let body: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(body));
        let argument = Box::into_raw(body).cast();
        // SAFETY: the callback is called at most once, with this argument, which is its own from then on.
        let result = unsafe { sys::rte_eal_alarm_set(1, Some(run_boxed), argument) };
        if result == 0 {
            return Ok(());
        }
        // SAFETY: nothing else has the pointer, as no alarm was set.
        drop(unsafe { Box::from_raw(argument.cast::<Box<dyn FnOnce() + Send>>()) });
        Err(EalError::Thread {
            what: "told by an alarm",
            reason: sys::thread::error_text(-result),
        })
    }

    pub(super) fn log(&self) -> &EalLog {
        self.0.log
    }

    /// Keeps all packet memory mapped for the rest of the process, because a pool still has packets out.
    pub(super) fn pin_memory(&self) {
        self.0.pinned.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let pinned = self.pinned.load(Ordering::SeqCst);
        if pinned > 0 {
            log::error!("DPDK's memory is left in place: {pinned} pools had packets out when they were dropped");
            return;
        }
        // SAFETY: initialised once; the last user is gone, hence no port, pool or packet is left.
        if unsafe { sys::rte_eal_cleanup() } < 0 {
            log::warn!("DPDK did not clean up{}", self.log.complaints());
        }
        let _ = fs::remove_dir(&self.runtime_directory);
    }
}

/// The calling thread's registration with DPDK; dropping it ends that. It cannot leave its thread.
#[derive(Debug)]
pub struct RegisteredThread {
    outermost: bool,
    _eal: Eal,
    _this_thread: PhantomData<*const ()>,
}

impl Drop for RegisteredThread {
    fn drop(&mut self) {
        if self.outermost {
            sys::thread::unregister();
        }
    }
}

/// What [`Eal::run_on_interrupt_thread`] has set an alarm for. A panic of the closure ends the process.
unsafe extern "C" fn run_boxed(argument: *mut c_void) {
    // SAFETY: it comes from `Box::into_raw` of this type, and an alarm calls once.
    let body = unsafe { Box::from_raw(argument.cast::<Box<dyn FnOnce() + Send>>()) };
    body();
}

/// Calls `rte_eal_init`; gives the runtime directory or the reason of the failure.
fn initialise(arguments: Vec<CString>) -> Result<PathBuf, String> {
    // The EAL keeps pointers into its arguments (and permutes them, as getopt does): they stay for good.
    let arguments = Box::leak(arguments.into_boxed_slice());
    let mut pointers: Vec<_> = arguments.iter().map(|argument| argument.as_ptr().cast_mut()).collect();
    pointers.push(ptr::null_mut());
    let pointers = Box::leak(pointers.into_boxed_slice());
    let count = i32::try_from(arguments.len()).map_err(|_| "too many arguments".to_owned())?;
    // SAFETY: `count` NUL-terminated strings and a final null, all of which live on.
    let result = unsafe { sys::rte_eal_init(count, pointers.as_mut_ptr()) };
    let reason = sys::thread::error_text(sys::thread::errno());
    // SAFETY: the string is static, and empty before the EAL has made the directory.
    let directory = unsafe { CStr::from_ptr(sys::rte_eal_get_runtime_dir()) };
    let directory = PathBuf::from(directory.to_string_lossy().into_owned());
    // It holds something only if telemetry is on; a directory for each process id would pile up.
    let _ = fs::remove_dir(&directory);
    if result < 0 { Err(reason) } else { Ok(directory) }
}

/// The CPU of lcore 0, and the CPUs that the EAL's own threads may use.
fn cores(config: &EalConfig) -> Result<(usize, CpuSet), EalError> {
    let allowed = sched_getaffinity(None)
        .map_err(io::Error::from)
        .map_err(|error| EalError::Thread {
            what: "asked for its CPUs",
            reason: error.to_string(),
        })?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
    if let Some(&core) = config
        .packet_cores
        .iter()
        .chain(&config.main_core)
        .find(|&core| !all.contains(core))
    {
        let allowed = all.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        return Err(EalError::NoSuchCore { core, allowed });
    }
    let free: Vec<usize> = all
        .iter()
        .copied()
        .filter(|core| !config.packet_cores.contains(core))
        .collect();
    // With every CPU a packet core the EAL's threads, which mostly sleep, share them all.
    let own = if free.is_empty() { all } else { free };
    let main_core = config.main_core.or_else(|| own.first().copied()).unwrap_or_default();
    let mut set = CpuSet::new();
    own.iter().for_each(|&core| set.set(core));
    Ok((main_core, set))
}

/// Free hugepages of each size, from sysfs; none if it cannot be read.
fn free_hugepages(directory: &Path) -> Vec<HugePages> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let size_kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let free = fs::read_to_string(entry.path().join("free_hugepages"))
                .ok()?
                .trim()
                .parse()
                .ok()?;
            Some(HugePages { size_kib, free })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hugepages_of_every_size_are_counted() {
        let directory = std::env::temp_dir().join(format!("e2d2-hugepages-{}", std::process::id()));
        for (size, free) in [
            ("hugepages-2048kB", "12\n"),
            ("hugepages-1048576kB", "1\n"),
            ("other", "7\n"),
        ] {
            fs::create_dir_all(directory.join(size)).expect("a temporary directory");
            fs::write(directory.join(size).join("free_hugepages"), free).expect("a temporary file");
        }
        let mut found = free_hugepages(&directory);
        fs::remove_dir_all(&directory).expect("the directory made above");
        found.sort_by_key(|pages| pages.size_kib);
        assert_eq!(
            found,
            [
                HugePages {
                    size_kib: 2048,
                    free: 12
                },
                HugePages {
                    size_kib: 1 << 20,
                    free: 1
                }
            ]
        );
        assert_eq!(free_hugepages(&directory), []);
    }

    #[test]
    fn a_core_that_does_not_exist_is_refused() {
        let config = EalConfig {
            packet_cores: vec![CpuSet::MAX_CPU + 1],
            ..EalConfig::default()
        };
        assert!(matches!(cores(&config), Err(EalError::NoSuchCore { .. })));
    }

    #[test]
    fn the_eal_keeps_off_packet_cores_while_others_are_left() {
        let (main, own) = cores(&EalConfig::default()).expect("at least one CPU");
        assert!(own.is_set(main));
        let config = EalConfig {
            packet_cores: vec![main],
            ..EalConfig::default()
        };
        let (next, rest) = cores(&config).expect("at least one CPU");
        if own.count() > 1 {
            assert!(next != main && !rest.is_set(main));
        } else {
            assert!(next == main && rest.is_set(main));
        }
    }
}
