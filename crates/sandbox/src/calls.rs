//! The system calls that are left to threads which read what strangers write.

use libc::c_long;

/// What the standard library makes of sockets and descriptors that are open, memory, time, locks and the end of a thread.
pub(crate) const COMMON: [c_long; 39] = [
    // Sockets that are there.
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_ppoll,
    libc::SYS_fcntl,
    // Any descriptor.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_lseek,
    libc::SYS_fstat,
    // Memory.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Time, locks, randomness.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_futex,
    libc::SYS_getrandom,
    // Threads and signals.
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_prctl,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Beyond that, of a thread that answers on sockets that are open already: connections that come in, files that are read or written anew,
/// threads. None of them opens a socket, a device or another process, or changes who the thread is.
pub(crate) const SERVING: [c_long; 19] = [
    // Its sockets.
    libc::SYS_accept4,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_ioctl,
    // Files.
    libc::SYS_readv,
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    // Threads.
    libc::SYS_clone,
    libc::SYS_geteuid,
];

/// Beyond that, of a thread that asks others over sockets of its own. It opens no file and starts no thread.
pub(crate) const ASKING: [c_long; 3] = [libc::SYS_socket, libc::SYS_connect, libc::SYS_tgkill];

/// Calls that the C library also makes by another name on this architecture: the name in the lists, and that one.
#[cfg(target_arch = "x86_64")]
pub(crate) const OLD_NAMES: [(c_long, c_long); 7] = [
    (libc::SYS_ppoll, libc::SYS_poll),
    (libc::SYS_openat, libc::SYS_open),
    (libc::SYS_newfstatat, libc::SYS_stat),
    (libc::SYS_newfstatat, libc::SYS_lstat),
    (libc::SYS_readlinkat, libc::SYS_readlink),
    (libc::SYS_renameat, libc::SYS_rename),
    (libc::SYS_unlinkat, libc::SYS_unlink),
];
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const OLD_NAMES: [(c_long, c_long); 0] = [];
