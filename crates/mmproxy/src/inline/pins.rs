//! What stays in the kernel when mmproxy ends, in a folder of a BPF file system: the connections, the links that keep the
//! programs attached, and the settings, in which is the key of the cookies.
//!
//! ```text
//! FOLDER/flows           shared with the programs of the next mmproxy
//! FOLDER/settings        read by the next one, which pins its own then
//! FOLDER/to_server_IFINDEX, FOLDER/to_client_IFINDEX
//!                        links: the next one puts its programs in the place of the old ones
//! ```
//!
//! Removing the folder ends the connections that live by it.

use super::system::{self, Way};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_FS: u64 = 0xcafe_4a11;

/// A folder in a BPF file system.
pub(super) struct Pins(PathBuf);

impl Pins {
    /// Makes the folder, unless it is there.
    ///
    /// # Errors
    /// If it is not in a BPF file system, or cannot be made.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let above = folder.ancestors().find(|path| path.exists());
        let kind = rustix::fs::statfs(above.unwrap_or(folder))?.f_type;
        if kind as u64 != BPF_FS {
            let text = format!(
                "{} is not in a BPF file system: mount -t bpf bpf /sys/fs/bpf",
                folder.display()
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        Ok(Pins(folder.to_owned()))
    }

    pub(super) fn flows(&self) -> PathBuf {
        self.0.join("flows")
    }

    pub(super) fn settings(&self) -> PathBuf {
        self.0.join("settings")
    }

    /// What may stand for interfaces in a name: theirs may have a dot, which names here may not.
    fn link(&self, ifindex: u32, way: Way) -> PathBuf {
        let name = match way {
            Way::Ingress => "to_server",
            Way::Egress => "to_client",
        };
        self.0.join(format!("{name}_{ifindex}"))
    }

    /// Puts `program` in the place of the one that is attached, or attaches it for good.
    pub(super) fn attach(&self, program: BorrowedFd<'_>, ifindex: u32, way: Way) -> io::Result<OwnedFd> {
        let path = self.link(ifindex, way);
        if path.exists() {
            let link = system::open_pinned(&path)?;
            match system::replace(link.as_fd(), program) {
                Ok(()) => return Ok(link),
                // The interface has gone, and another has its number.
                Err(error) => log::info!("{}: attached anew: {error}", path.display()),
            }
            std::fs::remove_file(&path)?;
        }
        let link = system::attach(program, ifindex, way)?;
        system::pin(link.as_fd(), &path)?;
        Ok(link)
    }

    /// Ends what is attached to other interfaces than these.
    pub(super) fn detach_others(&self, interfaces: &[u32]) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.0)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let number = name.strip_prefix("to_server_").or(name.strip_prefix("to_client_"));
            let number = number.and_then(|number| number.parse().ok());
            if number.is_some_and(|number: u32| !interfaces.contains(&number)) {
                std::fs::remove_file(&path)?;
            }
        }
        Ok(())
    }
}
