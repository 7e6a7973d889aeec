//! Giving up the file system: a relay reads its lists again, and never writes, makes, removes or executes a file.
//!
//! Landlock is the kernel's sandbox for programs that restrict themselves (linux/landlock.h, landlock(7)); its three system
//! calls have no wrapper in the C library. Sockets are not its business here, and what is open stays open.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::ptr;

/// `LANDLOCK_ACCESS_FS_*`: what versions 1, 2, 3 and 5 of the interface know, without reading files (bit 2) and folders
/// (bit 3): executing, writing, removing, making anything, renaming across folders, truncating, controlling devices.
const CHANGES: [(i64, u64); 4] = [(1, 0x1ff3), (2, 1 << 13), (3, 1 << 14), (5, 1 << 15)];

/// `LANDLOCK_SCOPE_SIGNAL`, since version 6: no signals to processes that are not restricted likewise.
const SCOPE_SIGNAL: u64 = 1 << 1;

/// `LANDLOCK_CREATE_RULESET_VERSION`.
const VERSION: u32 = 1;

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct Ruleset {
    files: u64,
    network: u64,
    scoped: u64,
}

/// Makes this thread, and those it starts, unable to change or execute any file, as far as this kernel can.
/// Returns the version of the kernel's interface.
///
/// # Errors
/// `Unsupported` if the kernel has no Landlock or was started without it; else what it reports. Needs `no_new_privs`.
pub fn renounce_files() -> io::Result<i64> {
    // SAFETY: with this flag the call takes no pointer and only returns a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            ptr::null::<Ruleset>(),
            0usize,
            VERSION,
        )
    };
    if version < 0 {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::ENOSYS | libc::EOPNOTSUPP) => io::ErrorKind::Unsupported.into(),
            _ => error,
        });
    }
    let known = |since: &&(i64, u64)| since.0 <= version;
    let ruleset = Ruleset {
        files: CHANGES.iter().filter(known).map(|(_, rights)| rights).sum(),
        network: 0,
        scoped: if version >= 6 { SCOPE_SIGNAL } else { 0 },
    };
    // Older kernels know a shorter structure, and take a longer one whose rest is zero.
    // SAFETY: the pointer and the length describe `ruleset`, which the kernel only reads during the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            ptr::from_ref(&ruleset),
            mem::size_of::<Ruleset>(),
            0u32,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is the one that the kernel has just given to us; nobody else has it. It is closed below.
    let restricted = unsafe {
        let result = libc::syscall(libc::SYS_landlock_restrict_self, fd, 0u32);
        let error = io::Error::last_os_error();
        libc::close(fd as i32);
        if result == 0 { Ok(()) } else { Err(error) }
    };
    restricted.map(|()| version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_can_be_read_but_not_written_made_removed_or_executed() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("list");
        std::fs::write(&file, "10.0.0.0/8\n").expect("written");
        let path = file.clone();
        let seen = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true)?;
            renounce_files()?;
            let kinds = [
                std::fs::read(&path).map(drop),
                std::fs::write(&path, "0.0.0.0/0\n"),
                std::fs::write(path.with_file_name("new"), ""),
                std::fs::remove_file(&path),
                std::process::Command::new("/bin/true").status().map(drop),
            ]
            .map(|result| result.err().map(|error| error.kind()));
            io::Result::Ok(kinds)
        });
        match seen.join().expect("the thread lives on") {
            Ok(kinds) => {
                let denied = Some(io::ErrorKind::PermissionDenied);
                assert_eq!(kinds, [None, denied, denied, denied, denied]);
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}"),
        }
        assert_eq!(std::fs::read_to_string(&file).expect("still there"), "10.0.0.0/8\n");
    }
}
