//! What a program gives up once it runs, so that bytes which take it over gain little.
//!
//! - [`user`]: the user and group that a configuration names.
//! - [`keep_capabilities`]: all others are gone for good.
//! - [`write_only_below`]: no file elsewhere is changed, made, removed or executed (Landlock).
//! - [`forbid`], [`forbid_in_all_threads`]: system calls that fail with EPERM (seccomp).
//! - [`allow_only_serving`], [`allow_only_asking`], [`allow_only_computing`]: all but a few do, for a thread that reads what strangers
//!   write.
//!
//! Each holds for the calling thread and for those that it starts later, [`forbid_in_all_threads`] for all. None can be taken back.
//! What lives here: the kernel's interfaces by name. What does not: who needs what; the programs decide that.

mod calls;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use calls::{ASKING, COMMON, OLD_NAMES, SERVING};
use landlock::{
    ABI, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use libc::c_long;
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// System calls that no program of this project makes after its start, and that whoever takes one over would like to. They fail
/// with EPERM: a filter that kills would break with every change in the C library. capset(2) is none of them: what a thread is
/// permitted it has in effect, so that it can only give up more.
pub const TAKEOVER: [c_long; 45] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
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
];

/// The flags of clone(2) that make a namespace. That of time is not among its flags: only clone3(2) and unshare(2) know it.
const NEW_NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// The user and group of these names or numbers. A user without a group has that of the user database.
///
/// # Errors
/// `NotFound` if there is no such user or group, `InvalidInput` for a group without a user, and what the databases report.
pub fn user(user: Option<&str>, group: Option<&str>) -> io::Result<Option<(Uid, Gid)>> {
    let missing = |what: &str, name: &str| io::Error::new(io::ErrorKind::NotFound, format!("no {what} `{name}`"));
    let gid = match group {
        None => None,
        Some(name) => {
            let found = nix::unistd::Group::from_name(name)?.map(|group| group.gid.as_raw());
            Some(
                found
                    .or_else(|| name.parse().ok())
                    .ok_or_else(|| missing("group", name))?,
            )
        }
    };
    let Some(name) = user else {
        return match gid {
            None => Ok(None),
            Some(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "group needs user")),
        };
    };
    let found = nix::unistd::User::from_name(name)?.map(|user| (user.uid.as_raw(), user.gid.as_raw()));
    let number = || name.parse().ok().map(|number| (number, number));
    let (uid, own) = found.or_else(number).ok_or_else(|| missing("user", name))?;
    Ok(Some((Uid::from_raw(uid), Gid::from_raw(gid.unwrap_or(own)))))
}

/// Changes to a user and group if they are given, and keeps `kept` of the capabilities it has. Executing a file gives nothing back
/// (`no_new_privs`).
///
/// # Errors
/// What the kernel reports.
pub fn keep_capabilities(kept: CapabilitySet, user: Option<(Uid, Gid)>) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let kept = rustix::thread::capabilities(None)?.permitted & kept;
    if let Some((uid, gid)) = user {
        rustix::thread::set_keep_capabilities(true)?;
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// From now on files are changed, made and removed below `folders` only, and none is executed; devices that are open may still be
/// controlled. Folders that do not exist are left out. As far as this kernel can: from version 6 of Landlock's interface on, signals
/// do not reach other processes either.
///
/// # Errors
/// `Unsupported` if the kernel has no Landlock or was started without it; else what it reports.
pub fn write_only_below(folders: &[&Path]) -> io::Result<()> {
    // The newest version that the tests have seen; an older kernel does what it can.
    const KNOWN: ABI = ABI::V6;
    let writing = AccessFs::from_write(KNOWN);
    let restricted = (|| {
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(writing | AccessFs::Execute)?
            .scope(Scope::Signal)?
            .create()?;
        for beneath in landlock::path_beneath_rules(folders, writing) {
            rules = rules.add_rule(beneath?)?;
        }
        rules.restrict_self()
    })();
    match restricted {
        Ok(status) if status.ruleset == RulesetStatus::NotEnforced => Err(io::ErrorKind::Unsupported.into()),
        Ok(_) => Ok(()),
        Err::<_, landlock::RulesetError>(error) => Err(io::Error::other(error)),
    }
}

/// Whether [`write_only_below`] has an effect on this kernel.
pub fn can_restrict_writing() -> bool {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::WriteFile);
    rules.and_then(|rules| rules.create()).is_ok()
}

/// Forbids these system calls, and clone(2) with new namespaces, to this thread and those it starts. clone3(2), whose flags no filter
/// sees, fails with ENOSYS, and the C library calls clone(2) instead. Numbers of another architecture kill the process.
///
/// # Errors
/// If the kernel has no filters.
pub fn forbid(calls: &[c_long]) -> io::Result<()> {
    filters(calls)?
        .iter()
        .try_for_each(|filter| seccompiler::apply_filter(filter).map_err(io::Error::other))
}

/// The same for all threads there are.
///
/// # Errors
/// The same; or if a thread has a filter of its own.
pub fn forbid_in_all_threads(calls: &[c_long]) -> io::Result<()> {
    filters(calls)?
        .iter()
        .try_for_each(|filter| seccompiler::apply_filter_all_threads(filter).map_err(io::Error::other))
}

/// Forbids all system calls but those of a server (`calls.rs`) to this thread and those it starts, and of these what [`forbid`] forbids whatever its
/// calls are: new namespaces. Filters of before hold, too.
///
/// # Errors
/// If the kernel has no filters.
pub fn allow_only_serving() -> io::Result<()> {
    allow_only(&[&COMMON[..], &SERVING].concat())
}

/// The same for a thread that asks others over sockets that it opens.
///
/// # Errors
/// If the kernel has no filters.
pub fn allow_only_asking() -> io::Result<()> {
    allow_only(&[&COMMON[..], &ASKING].concat())
}

/// The same for a thread that only uses memory, time, locks and descriptors that are open already.
///
/// # Errors
/// If the kernel has no filters.
pub fn allow_only_computing() -> io::Result<()> {
    allow_only(&COMMON)
}

fn allow_only(calls: &[c_long]) -> io::Result<()> {
    // Before: seccomp(2) itself is none of them.
    forbid(&[])?;
    // clone3(2) is for the filter before: the C library has to see ENOSYS.
    let old = OLD_NAMES
        .iter()
        .filter(|(new, _)| calls.contains(new))
        .map(|(_, old)| old);
    let allowed = calls.iter().chain(old).chain([&libc::SYS_clone3]);
    let allowed = allowed.map(|&number| (number, vec![])).collect();
    let failing = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let filter = compiled(allowed, SeccompAction::Allow, failing)?;
    seccompiler::apply_filter(&filter).map_err(io::Error::other)
}

fn filters(calls: &[c_long]) -> io::Result<[BpfProgram; 2]> {
    let mut refused: BTreeMap<i64, Vec<SeccompRule>> = calls.iter().map(|&number| (number, vec![])).collect();
    let namespace = |flag: i32| {
        // The lower half: the upper one holds none of them.
        let flag = u64::from(flag.cast_unsigned());
        let is_asked_for = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)?;
        SeccompRule::new(vec![is_asked_for])
    };
    let namespaces: Result<Vec<_>, _> = NEW_NAMESPACES.into_iter().map(namespace).collect();
    refused.insert(libc::SYS_clone, namespaces.map_err(io::Error::other)?);
    let absent = BTreeMap::from([(libc::SYS_clone3, vec![])]);
    let failing = |errno: i32| SeccompAction::Errno(errno.cast_unsigned());
    Ok([
        compiled(refused, failing(libc::EPERM), SeccompAction::Allow)?,
        compiled(absent, failing(libc::ENOSYS), SeccompAction::Allow)?,
    ])
}

/// A filter with one action for these calls and another for all others.
fn compiled(
    calls: BTreeMap<i64, Vec<SeccompRule>>,
    of_these: SeccompAction,
    of_others: SeccompAction,
) -> io::Result<BpfProgram> {
    let architecture = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    SeccompFilter::new(calls, of_others, of_these, architecture)
        .and_then(TryInto::try_into)
        .map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::process::Command;
    use std::time::Duration;

    /// Runs `body` on a thread of its own, as what it gives up is gone.
    fn aside<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(body).join().expect("the thread ends by itself")
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        let root = Some((Uid::ROOT, Gid::ROOT));
        assert_eq!(user(Some("root"), None).expect("root"), root);
        assert_eq!(user(Some("0"), Some("0")).expect("numbers"), root);
        let numbers = Some((Uid::from_raw(54_321), Gid::from_raw(54_322)));
        assert_eq!(user(Some("54321"), Some("54322")).expect("numbers"), numbers);
        assert_eq!(user(None, None).expect("nobody"), None);
        let kind = |user, group| super::user(user, group).expect_err("refused").kind();
        assert_eq!(kind(Some("no such user"), None), io::ErrorKind::NotFound);
        assert_eq!(kind(Some("root"), Some("no such group")), io::ErrorKind::NotFound);
        assert_eq!(kind(None, Some("root")), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn only_the_capabilities_that_are_kept_are_left() {
        let left = aside(|| {
            keep_capabilities(CapabilitySet::NET_ADMIN, None)?;
            Ok::<_, io::Error>(rustix::thread::capabilities(None)?)
        });
        let left = left.expect("nothing is asked for that is not there");
        assert!(CapabilitySet::NET_ADMIN.contains(left.permitted), "{left:?}");
        assert_eq!(left.permitted, left.effective);
    }

    #[test]
    fn files_are_written_below_the_folders_only_and_none_is_executed() {
        let (open, shut) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("two"));
        let list = shut.path().join("list");
        std::fs::write(&list, "10.0.0.0/8\n").expect("written");
        let (open, path) = (open.path().to_owned(), list.clone());
        let kept = open.clone();
        let seen = aside(move || {
            write_only_below(&[&open, Path::new("/there/is/no/such/folder")])?;
            let kinds = [
                std::fs::read(&path).map(drop),
                std::fs::write(open.join("new"), ""),
                std::fs::write(&path, "0.0.0.0/0\n"),
                std::fs::write(path.with_file_name("new"), ""),
                std::fs::remove_file(&path),
                Command::new("/bin/true").status().map(drop),
            ]
            .map(|result| result.err().map(|error| error.kind()));
            io::Result::Ok(kinds)
        });
        drop(kept);
        match seen {
            Ok(kinds) => {
                let denied = Some(io::ErrorKind::PermissionDenied);
                assert_eq!(kinds, [None, None, denied, denied, denied, denied]);
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}"),
        }
        assert_eq!(std::fs::read_to_string(&list).expect("still there"), "10.0.0.0/8\n");
    }

    #[test]
    fn what_is_forbidden_fails_and_nothing_else() {
        let (exec, taken, file) = aside(|| {
            let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).expect("a process");
            let take = || pidfd_getfd(&own, 0, PidfdGetfdFlags::empty()).map(drop);
            take().expect("a descriptor of the own process");
            forbid(&TAKEOVER).expect("this kernel has filters");
            // A forked child that cannot execute reports it.
            let exec = Command::new("/bin/true").status().map_err(|error| error.kind());
            (
                exec,
                take(),
                aside(|| std::fs::read("/proc/self/stat").map(|read| !read.is_empty())),
            )
        });
        assert_eq!(exec.expect_err("exec is refused"), io::ErrorKind::PermissionDenied);
        assert_eq!(taken, Err(rustix::io::Errno::PERM));
        assert!(file.expect("threads start and read"));
    }
    #[test]
    fn who_asks_opens_sockets_and_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        let kinds = aside(move || {
            allow_only_asking().expect("this kernel has filters");
            let asked = std::net::UdpSocket::bind("127.0.0.1:0")
                .map(drop)
                .map_err(|error| error.kind());
            let stream = std::net::TcpStream::connect("127.0.0.1:1").map(drop);
            let more = [
                std::fs::write(&file, "new"),
                std::fs::read(&file).map(drop),
                Command::new("/bin/true").status().map(drop),
                std::thread::Builder::new().spawn(|| ()).map(drop),
            ];
            (asked, kind_of(stream), more.map(kind_of))
        });
        let denied = Some(io::ErrorKind::PermissionDenied);
        assert_eq!(
            kinds,
            (
                Err(io::ErrorKind::PermissionDenied),
                Some(io::ErrorKind::ConnectionRefused),
                [denied; 4]
            )
        );
    }

    #[test]
    fn who_serves_answers_and_does_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut here, mut there) = UnixStream::pair().expect("a pair");
        there.write_all(b"asked").expect("written");
        let file = folder.path().join("journal");
        let kinds = aside(move || {
            allow_only_serving().expect("this kernel has filters");
            let mut asked = [0; 5];
            let serves = [
                here.read_exact(&mut asked),
                here.write_all(&asked),
                std::fs::write(&file, "new"),
                std::fs::rename(&file, file.with_extension("old")),
                std::fs::remove_file(file.with_extension("old")),
                std::thread::Builder::new()
                    .spawn(|| std::thread::sleep(Duration::from_millis(1)))
                    .map(|thread| thread.join().expect("it ends")),
            ];
            let more = [
                UnixStream::pair().map(drop),
                std::net::TcpStream::connect("127.0.0.1:1").map(drop),
                Command::new("/bin/true").status().map(drop),
                std::os::unix::fs::symlink("/", "root"),
                std::net::UdpSocket::bind("127.0.0.1:0").map(drop),
            ];
            (serves.map(kind_of), more.map(kind_of))
        });
        assert_eq!(kinds, ([None; 6], [Some(io::ErrorKind::PermissionDenied); 5]));
        let mut answered = [0; 5];
        there.read_exact(&mut answered).expect("an answer");
        assert_eq!(&answered, b"asked");
    }

    #[test]
    fn who_computes_opens_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        let kinds = aside(move || {
            allow_only_computing().expect("this kernel has filters");
            std::thread::park_timeout(Duration::from_millis(1));
            let memory = vec![1_u8; 16 << 20];
            assert!(memory.iter().all(|byte| *byte == 1));
            [
                std::fs::write(&file, "new"),
                std::fs::read("/proc/self/stat").map(drop),
                UnixStream::pair().map(drop),
                std::net::UdpSocket::bind("127.0.0.1:0").map(drop),
                std::net::TcpStream::connect("127.0.0.1:1").map(drop),
                Command::new("/bin/true").status().map(drop),
                std::thread::Builder::new().spawn(|| ()).map(drop),
            ]
            .map(kind_of)
        });
        assert_eq!(kinds, [Some(io::ErrorKind::PermissionDenied); 7]);
    }

    fn kind_of(result: io::Result<()>) -> Option<io::ErrorKind> {
        result.err().map(|error| error.kind())
    }
}
