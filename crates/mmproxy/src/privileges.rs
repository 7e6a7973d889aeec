//! Giving up what is not needed after start: capabilities, the user, system calls.

use crate::config::Config;
use crate::landlock;
use crate::sys::{self, Instruction};
use rustix::process::{Gid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io;

/// How to get the capability that spoofing needs.
pub const ADMIN_HINT: &str = "CAP_NET_ADMIN is needed: run as root, or `setcap cap_net_admin,cap_net_bind_service+ep \
                              $(command -v mmproxy)`, or AmbientCapabilities=CAP_NET_ADMIN in the systemd unit";

/// What a running proxy keeps: spoofing and SO_MARK; listening on low ports after a reload.
const KEPT: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_BIND_SERVICE);

/// Whether this thread may spoof.
pub fn has_net_admin() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

/// Raises the limit of descriptors as far as it goes, and returns it.
pub fn raise_descriptor_limit() -> u64 {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if limit.current != limit.maximum && rustix::process::setrlimit(Resource::Nofile, raised).is_ok() {
        return limit.maximum.unwrap_or(u64::MAX);
    }
    limit.current.unwrap_or(u64::MAX)
}

/// Changes to the configured user and group and keeps of the capabilities what spoofing and low ports need. Threads that are started
/// later inherit all of it, so this comes before them.
///
/// # Errors
/// If the user or group does not exist, or the change is refused.
pub fn drop_privileges(config: &Config) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let before = rustix::thread::capabilities(None)?;
    let ids = lookup(config)?;
    if let Some((uid, gid)) = ids {
        rustix::thread::set_keep_capabilities(true)?;
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    let kept = before.permitted & KEPT;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}

fn lookup(config: &Config) -> io::Result<Option<(Uid, Gid)>> {
    let missing = |what: &str, name: &str| io::Error::new(io::ErrorKind::NotFound, format!("no {what} `{name}`"));
    let group = match &config.group {
        None => None,
        Some(name) => {
            let found = field(&std::fs::read_to_string("/etc/group")?, name, 2);
            Some(
                found
                    .or_else(|| name.parse().ok())
                    .ok_or_else(|| missing("group", name))?,
            )
        }
    };
    let Some(name) = &config.user else {
        return match group {
            None => Ok(None),
            Some(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "group needs user")),
        };
    };
    let users = std::fs::read_to_string("/etc/passwd")?;
    let uid = field(&users, name, 2)
        .or_else(|| name.parse().ok())
        .ok_or_else(|| missing("user", name))?;
    let gid = group.or_else(|| field(&users, name, 3)).unwrap_or(uid);
    Ok(Some((Uid::from_raw(uid), Gid::from_raw(gid))))
}

/// A number in the line of `name` in /etc/passwd or /etc/group.
fn field(text: &str, name: &str, index: usize) -> Option<u32> {
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(index)?.parse().ok()
}

/// System calls that a proxy never makes and that whoever takes it over would like to. They fail with EPERM: a filter
/// that kills would break with every change in the C library, as cloudflare's did.
const FORBIDDEN: [libc::c_long; 38] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_personality,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_capset,
];

/// `AUDIT_ARCH_*` of linux/audit.h, where it is known.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

/// Forbids them, and changing or executing files, to this thread and those it starts.
///
/// # Errors
/// If the kernel has no filters.
pub fn sandbox() -> io::Result<()> {
    match landlock::renounce_files() {
        Ok(version) => log::debug!("files cannot be changed any more (Landlock {version})"),
        // Not every kernel has it; the filter below does not need it.
        Err(error) => log::debug!("no Landlock: {error}"),
    }
    sys::install_seccomp_filter(&filter(&FORBIDDEN))
}

/// The same for the thread that keeps the programs of inline mode informed, which may call `bpf(2)`. Without capabilities that
/// loads no program.
///
/// # Errors
/// If the kernel has no filters.
pub fn sandbox_for_inline() -> io::Result<()> {
    let _ = landlock::renounce_files();
    let forbidden: Vec<_> = FORBIDDEN
        .into_iter()
        .filter(|&number| number != libc::SYS_bpf)
        .collect();
    sys::install_seccomp_filter(&filter(&forbidden))
}

fn filter(forbidden: &[libc::c_long]) -> Vec<Instruction> {
    const LOAD: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let op = |code, operand| Instruction {
        code,
        jump_true: 0,
        jump_false: 0,
        operand,
    };
    // seccomp_data: the system call's number at 0, the architecture at 4. Another architecture has other numbers, and what
    // is built for one never makes calls of another: all of them are refused.
    let mut program = Vec::with_capacity(forbidden.len() + 5);
    if let Some(architecture) = ARCHITECTURE {
        program.push(op(LOAD, 4));
        program.push(Instruction {
            code: JUMP_EQUAL,
            jump_true: 1,
            jump_false: 0,
            operand: architecture,
        });
        program.push(op(RETURN, REFUSE));
    }
    program.push(op(LOAD, 0));
    let count = forbidden.len();
    for (index, &number) in forbidden.iter().enumerate() {
        let to_refusal = (count - index) as u8;
        program.push(Instruction {
            code: JUMP_EQUAL,
            jump_true: to_refusal,
            jump_false: 0,
            operand: number as u32,
        });
    }
    program.push(op(RETURN, ALLOW));
    program.push(op(RETURN, REFUSE));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_user_database() {
        let text = "root:x:0:0:root:/root:/bin/sh\nproxy:x:13:14::/bin:/bin/false\n";
        assert_eq!((field(text, "proxy", 2), field(text, "proxy", 3)), (Some(13), Some(14)));
        assert_eq!(field(text, "prox", 2), None);
    }

    #[test]
    fn the_filter_forbids_what_it_lists_and_nothing_else() {
        let result = std::thread::spawn(|| {
            rustix::thread::set_no_new_privs(true)?;
            sandbox()?;
            // A forked child that cannot exec reports it.
            let exec = std::process::Command::new("/bin/true").status();
            let file = std::fs::read("/proc/self/stat").map(|read| !read.is_empty());
            io::Result::Ok((exec.map_err(|error| error.kind()), file?))
        })
        .join()
        .expect("the thread lives on")
        .expect("filter installed");
        assert_eq!(result.0.expect_err("exec is refused"), io::ErrorKind::PermissionDenied);
        assert!(result.1);
    }
}
