//! PostgreSQL: one cluster for each server, in a folder of the rig, run by a user without rights.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Certificates, NOBODY, STARTING, give, let_in, make_folder, name_of, write_file};
use crate::process::{self, Process};
use crate::{Place, Rig, RigError};

/// PostgreSQL.
pub const POSTGRES: u16 = 5432;

/// What both servers hold, so that only their names tell them apart.
const CONTENT: &str = "CREATE ROLE alice LOGIN;
CREATE ROLE bob LOGIN;
CREATE DATABASE shop;
CREATE DATABASE stock;
";

/// The server's program, which Debian keeps out of the search path; for [`crate::requirements`].
pub fn program() -> PathBuf {
    programs().join("postgres")
}

/// The folder of the newest version's programs.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.max_by_key(|entry| entry.file_name().to_string_lossy().parse::<u32>().unwrap_or_default());
    newest.map_or_else(PathBuf::new, |version| version.path().join("bin"))
}

/// A command that runs as `nobody`.
fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    let user = NOBODY.to_string();
    command
        .args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"])
        .arg(program);
    command
}

/// Starts PostgreSQL as servers 0 and 1, each on port 5432 of its IPv4 and IPv6 address and with its name as `cluster_name`.
///
/// Both have the databases `shop` and `stock` and the users `alice` and `bob`, who need no password; both encrypt for those
/// who ask them to, with the certificate of their host.
///
/// # Errors
/// When a cluster cannot be made, or one does not listen in time.
pub fn start_postgres(rig: &Rig, certificates: &Certificates) -> Result<Vec<Process>, RigError> {
    let folder = rig.file("postgres");
    make_folder(&folder)?;
    let_in(rig.folder())?;
    give(&folder)?;
    let original = folder.join("original");
    let make = [
        "--auth=trust",
        "--username=owner",
        "--locale=C",
        "--encoding=UTF8",
        "--no-sync",
        "-D",
    ];
    process::run(
        unprivileged(&programs().join("initdb")).args(make).arg(&original),
        b"",
        STARTING,
    )?;
    let mut single = unprivileged(&program());
    single
        .args(["--single", "-c", "fsync=off", "-D"])
        .arg(&original)
        .arg("postgres");
    process::run(&mut single, CONTENT.as_bytes(), STARTING)?;
    write_file(&original.join("pg_hba.conf"), "host all all all trust\n")?;
    (0..2)
        .map(|index| start(rig, index, &folder, &original, certificates))
        .collect()
}

/// Copies the original, and starts the copy.
fn start(
    rig: &Rig,
    index: usize,
    folder: &Path,
    original: &Path,
    certificates: &Certificates,
) -> Result<Process, RigError> {
    let name = name_of(index);
    let data = folder.join(&name);
    process::run(
        Command::new("cp").arg("--archive").arg(original).arg(&data),
        b"",
        STARTING,
    )?;
    for (from, to) in [
        (certificates.certificate(index), data.join("server.crt")),
        (certificates.key(index), data.join("server.key")),
    ] {
        fs::copy(&from, &to).map_err(RigError::io(format!("copying {}", from.display())))?;
        give(&to)?;
        // PostgreSQL refuses a key that others may read.
        fs::set_permissions(&to, fs::Permissions::from_mode(0o600))
            .map_err(RigError::io(format!("protecting {}", to.display())))?;
    }
    let addresses = rig.server_addresses(index).map(|address: IpAddr| address.to_string());
    let settings = [
        format!("listen_addresses={}", addresses.join(",")),
        format!("port={POSTGRES}"),
        format!("cluster_name={name}"),
        "unix_socket_directories=".to_owned(),
        "ssl=on".to_owned(),
        "fsync=off".to_owned(),
    ];
    let postgres = unprivileged(&program());
    let mut command = rig.command(Place::Servers, &postgres.get_program().to_string_lossy());
    command.args(postgres.get_args()).arg("-D").arg(&data);
    for setting in &settings {
        command.args(["-c", setting]);
    }
    let mut server = Process::start(&mut command, &rig.file(&format!("postgres-{name}.log")))?;
    server.wait_for("its being ready", STARTING, |server| {
        server.printed().contains("ready to accept connections")
    })?;
    Ok(server)
}
