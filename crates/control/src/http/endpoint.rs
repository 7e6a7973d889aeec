//! Where a server listens, and how a client gets there.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Who may connect to a Unix socket: its owner and its group.
const MODE: u32 = 0o660;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 128;

/// An address or the path of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// An address with its port: `127.0.0.1:9180`, `[::1]:9180`.
    Tcp(SocketAddr),
    /// A path that begins with `/`.
    Unix(PathBuf),
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            // What a socket's address has room for: unix(7), 108 bytes with the zero at its end.
            return match text.len() {
                ..108 => Ok(Self::Unix(text.into())),
                length => Err(format!("a socket's path has at most 107 bytes, not {length}")),
            };
        }
        let expected = || format!("'{text}' is neither an address with a port nor a path that begins with /");
        text.parse().map(Self::Tcp).map_err(|_| expected())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A socket at `path` for owner and group. One that nobody listens on any more is replaced.
pub(super) fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        if UnixStream::connect(path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        fs::remove_file(path)?;
    }
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The mode of the socket becomes that of the file, less the umask: there is no moment in which others may connect.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(MODE))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_paths_are_told_apart() {
        let of = |text: &str| text.parse::<Endpoint>();
        assert_eq!(of("127.0.0.1:9180"), Ok(Endpoint::Tcp(([127, 0, 0, 1], 9180).into())));
        assert_eq!(of("/run/x/control"), Ok(Endpoint::Unix("/run/x/control".into())));
        assert_eq!(of("[::1]:80").map(|found| found.to_string()), Ok("[::1]:80".to_owned()));
        for wrong in ["", "9180", "localhost:80", "run/control"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        assert!(of(&format!("/{}", "a".repeat(106))).is_ok());
        assert!(of(&format!("/{}", "a".repeat(107))).is_err());
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_living_one_or_a_file_is_not() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("socket");
        drop(bind_unix(&path).expect("the first"));
        let living = bind_unix(&path).expect("the first is dead");
        let mode = fs::metadata(&path).expect("socket").permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        assert_eq!(bind_unix(&path).expect_err("living").kind(), io::ErrorKind::AddrInUse);
        drop(living);
        let file = folder.path().join("file");
        fs::write(&file, "kept").expect("file");
        assert!(bind_unix(&file).is_err());
        assert_eq!(fs::read_to_string(&file).expect("file"), "kept");
    }
}
