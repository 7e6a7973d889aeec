//! Real servers that nobody here wrote, each of which says who it is: nginx, `openssl s_server`, socat and iperf3; in files
//! of their own PostgreSQL, slapd, redis and Dropbear.
//!
//! Server `index` (0 to 2) of the rig calls itself `server1` to `server3` in whatever it answers, and listens on its IPv4
//! and its IPv6 address. That is how a client notices that it has reached the wrong one.

mod postgres;
mod redis;
mod slapd;
mod ssh;

pub use postgres::{POSTGRES, program as postgres_program, start_postgres};
pub use redis::{REDIS, start_redis};
pub use slapd::{LDAP, PASSWORD, start_slapd};
pub use ssh::{SSH, start_ssh};

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::{self, Process};
use crate::{HOSTS, Place, Rig, RigError, SERVERS};

/// nginx.
pub const HTTP: u16 = 80;
/// `openssl s_server`.
pub const TLS: u16 = 443;
/// socat with a shell script behind it.
pub const NUMBERS: u16 = 7000;
/// iperf3.
pub const IPERF: u16 = 5201;

/// Programs that the servers here are, and that make their certificates.
pub const TOOLS: &[&str] = &["nginx", "openssl", "socat", "sh"];

const STARTING: Duration = Duration::from_secs(20);

/// What server `index` calls itself.
pub fn name_of(index: usize) -> String {
    format!("server{}", index + 1)
}

/// The server that calls itself so in `answer`, if one does.
pub fn named_in(answer: &str) -> Option<usize> {
    (0..SERVERS).find(|&index| answer.contains(&name_of(index)))
}

/// Starts nginx as server `index` on port 80.
///
/// It answers every request with its name and the request's host and path, except below `/files/`, where it serves what
/// [`files_of`] holds and stores what is sent with PUT.
///
/// # Errors
/// When it does not listen in time.
pub fn start_nginx(rig: &Rig, index: usize) -> Result<Process, RigError> {
    start_nginx_at(rig, Place::Servers, index, &rig.server_addresses(index))
}

/// The same at any place, and only on these addresses.
///
/// # Errors
/// When it does not listen in time.
pub fn start_nginx_at(rig: &Rig, place: Place, index: usize, addresses: &[IpAddr]) -> Result<Process, RigError> {
    let name = name_of(index);
    let folder = rig.file(&format!("nginx-{name}"));
    make_folder(&files_of(rig, index))?;
    let configuration = folder.join("nginx.conf");
    write_file(&configuration, &nginx_configuration(&name, &folder, addresses))?;
    let (configuration, prefix) = (configuration.to_string_lossy(), folder.to_string_lossy());
    let arguments = ["-c", &configuration, "-p", &prefix, "-e", "stderr"];
    let mut nginx = rig.start(place, &format!("nginx-{name}"), "nginx", &arguments)?;
    nginx.wait_for("its process id", STARTING, |_| folder.join("pid").exists())?;
    let listening: Vec<_> = addresses
        .iter()
        .map(|&address| SocketAddr::new(address, HTTP))
        .collect();
    nginx.wait_for_listeners(&listening, STARTING)?;
    Ok(nginx)
}

/// Where nginx as server `index` keeps the files below `/files/`.
pub fn files_of(rig: &Rig, index: usize) -> PathBuf {
    rig.file(&format!("nginx-{}/files", name_of(index)))
}

fn nginx_configuration(name: &str, folder: &Path, addresses: &[IpAddr]) -> String {
    let folder = folder.display();
    let listen = |address: &IpAddr| format!("        listen {} backlog=1024;\n", SocketAddr::new(*address, HTTP));
    let listen: String = addresses.iter().map(listen).collect();
    format!(
        "user root;
daemon off;
master_process off;
pid {folder}/pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_max_body_size 1g;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    default_type text/plain;
    server {{
{listen}        location / {{ return 200 \"{name} $host $request_uri\\n\"; }}
        location /files/ {{ root {folder}; dav_methods PUT; create_full_put_path on; }}
    }}
}}
"
    )
}

/// Certificates for [`HOSTS`], self-signed and made for one rig.
#[derive(Debug)]
pub struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    /// Makes one for each server, and a file with all of them for the clients to trust.
    ///
    /// # Errors
    /// When openssl fails.
    pub fn make(rig: &Rig) -> Result<Self, RigError> {
        let certificates = Self {
            folder: rig.file("certificates"),
        };
        make_folder(&certificates.folder)?;
        let mut all = String::new();
        for (index, host) in HOSTS.iter().enumerate() {
            let mut openssl = Command::new("openssl");
            openssl
                .args([
                    "req",
                    "-x509",
                    "-nodes",
                    "-days",
                    "30",
                    "-newkey",
                    "ec",
                    "-pkeyopt",
                    "ec_paramgen_curve:P-256",
                ])
                .args(["-subj", &format!("/O={}/CN={host}", name_of(index))])
                .args(["-addext", &format!("subjectAltName=DNS:{host}")])
                .arg("-keyout")
                .arg(certificates.key(index))
                .arg("-out")
                .arg(certificates.certificate(index));
            process::run(&mut openssl, b"", STARTING)?;
            let path = certificates.certificate(index);
            all += &fs::read_to_string(&path).map_err(RigError::io(format!("reading {}", path.display())))?;
        }
        write_file(&certificates.trusted(), &all)?;
        Ok(certificates)
    }

    /// The certificates of all servers, for a client to trust.
    pub fn trusted(&self) -> PathBuf {
        self.folder.join("all.pem")
    }

    fn certificate(&self, index: usize) -> PathBuf {
        self.folder.join(format!("{}.pem", name_of(index)))
    }

    fn key(&self, index: usize) -> PathBuf {
        self.folder.join(format!("{}.key", name_of(index)))
    }
}

/// Starts `openssl s_server` as server `index` on port 443, one for each address family.
///
/// It answers `GET /whoami` with its name, and any other path below its folder with an error.
///
/// # Errors
/// When one does not listen in time.
pub fn start_tls(rig: &Rig, index: usize, certificates: &Certificates) -> Result<Vec<Process>, RigError> {
    let name = name_of(index);
    let folder = rig.file(&format!("tls-{name}"));
    write_file(&folder.join("whoami"), &format!("{name}\n"))?;
    let start = |address: IpAddr| {
        let family = if address.is_ipv4() { "4" } else { "6" };
        let at = SocketAddr::new(address, TLS);
        let mut openssl = rig.command(Place::Servers, "openssl");
        openssl
            .args([
                "s_server",
                "-WWW",
                "-quiet",
                &format!("-{family}"),
                "-accept",
                &at.to_string(),
                "-cert",
            ])
            .arg(certificates.certificate(index))
            .arg("-key")
            .arg(certificates.key(index))
            .current_dir(&folder);
        let mut server = Process::start(&mut openssl, &rig.file(&format!("tls-{name}-{family}.log")))?;
        server.wait_for_listeners(&[at], STARTING)?;
        Ok(server)
    };
    rig.server_addresses(index).into_iter().map(start).collect()
}

/// Starts socat as server `index` on port 7000, one for each address family. It reads a line and answers with its name
/// and that line.
///
/// # Errors
/// When one does not listen in time.
pub fn start_numbers(rig: &Rig, index: usize) -> Result<Vec<Process>, RigError> {
    let name = name_of(index);
    let script = rig.file(&format!("numbers-{name}.sh"));
    write_file(
        &script,
        &format!("IFS= read -r line\nprintf '%s read: %s\\n' {name} \"$line\"\n"),
    )?;
    let start = |address: IpAddr| {
        let (family, bound) = if address.is_ipv4() {
            ("4", format!("{address}"))
        } else {
            ("6", format!("[{address}]"))
        };
        let listen = format!("TCP{family}-LISTEN:{NUMBERS},bind={bound},reuseaddr,fork,backlog=1024");
        let answer = format!("EXEC:sh {}", script.display());
        let mut socat = rig.start(
            Place::Servers,
            &format!("numbers-{name}-{family}"),
            "socat",
            // A client that has sent its FIN still waits for the answer, for longer than the half second that socat gives it.
            &["-t", "60", &listen, &answer],
        )?;
        socat.wait_for_listeners(&[SocketAddr::new(address, NUMBERS)], STARTING)?;
        Ok(socat)
    };
    rig.server_addresses(index).into_iter().map(start).collect()
}

/// Starts socat as server `index` on `port` of its addresses: it ends TLS, with the certificate of its host, and passes what
/// is inside on to the same server's `behind`.
///
/// # Errors
/// When one does not listen in time.
pub fn start_tls_terminator(
    rig: &Rig,
    index: usize,
    certificates: &Certificates,
    port: u16,
    behind: u16,
) -> Result<Vec<Process>, RigError> {
    let start = |address: IpAddr| {
        let (family, host) = if address.is_ipv4() {
            ("4", format!("{address}"))
        } else {
            ("6", format!("[{address}]"))
        };
        let listen = format!(
            "OPENSSL-LISTEN:{port},pf=ip{family},bind={host},reuseaddr,fork,verify=0,cert={},key={}",
            certificates.certificate(index).display(),
            certificates.key(index).display()
        );
        let name = format!("terminator-{}-{family}", name_of(index));
        let mut socat = rig.start(
            Place::Servers,
            &name,
            "socat",
            &[&listen, &format!("TCP{family}:{host}:{behind}")],
        )?;
        socat.wait_for_listeners(&[SocketAddr::new(address, port)], STARTING)?;
        Ok(socat)
    };
    rig.server_addresses(index).into_iter().map(start).collect()
}

/// Starts iperf3 on port 5201 of every address of the servers.
///
/// # Errors
/// When it does not listen in time.
pub fn start_iperf(rig: &Rig) -> Result<Process, RigError> {
    let mut iperf = rig.start(
        Place::Servers,
        "iperf",
        "iperf3",
        &["--server", "--port", &IPERF.to_string()],
    )?;
    iperf.wait_for_listeners(&[SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), IPERF)], STARTING)?;
    Ok(iperf)
}

fn make_folder(path: &Path) -> Result<(), RigError> {
    fs::create_dir_all(path).map_err(RigError::io(format!("making {}", path.display())))
}

fn write_file(path: &Path, text: &str) -> Result<(), RigError> {
    if let Some(folder) = path.parent() {
        make_folder(folder)?;
    }
    fs::write(path, text).map_err(RigError::io(format!("writing {}", path.display())))
}

/// `nobody` and `nogroup` of every Debian: servers that do not run as root run as this user.
const NOBODY: u32 = 65_534;

/// Gives a file or a folder to that user.
fn give(path: &Path) -> Result<(), RigError> {
    chown(path, Some(NOBODY), Some(NOBODY)).map_err(RigError::io(format!("giving away {}", path.display())))
}

/// Lets everyone pass through a folder, whatever the mask that it was made with.
fn let_in(folder: &Path) -> Result<(), RigError> {
    let mode = fs::Permissions::from_mode(0o711);
    fs::set_permissions(folder, mode).map_err(RigError::io(format!("opening {} to others", folder.display())))
}
