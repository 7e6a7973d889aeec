//! OpenLDAP's slapd: a directory of its own for each server, in a folder of the rig.

use std::net::SocketAddr;
use std::process::Command;

use super::{STARTING, give, let_in, make_folder, name_of, write_file};
use crate::process::{self, Process};
use crate::{Place, Rig, RigError};

/// slapd.
pub const LDAP: u16 = 389;

/// The password of everyone in the directories.
pub const PASSWORD: &str = "secret";

/// Starts slapd as server `index` on port 389 of its IPv4 and IPv6 address.
///
/// All servers hold the same people, `cn=alice,ou=people,dc=example,dc=org` and `cn=bob,ou=staff,dc=example,dc=org`; the
/// attribute `o` of `dc=example,dc=org` is the server's name.
///
/// # Errors
/// When the directory cannot be made, or slapd does not listen in time.
pub fn start_slapd(rig: &Rig, index: usize) -> Result<Process, RigError> {
    let name = name_of(index);
    let folder = rig.file(&format!("slapd-{name}"));
    let data = folder.join("data");
    make_folder(&data)?;
    let (configuration, content) = (folder.join("slapd.conf"), folder.join("content.ldif"));
    write_file(
        &configuration,
        &format!(
            "include /etc/ldap/schema/core.schema
database ldif
directory {}
suffix \"dc=example,dc=org\"
access to attrs=userPassword by anonymous auth
access to * by * read
",
            data.display()
        ),
    )?;
    write_file(&content, &content_of(&name))?;
    let mut slapadd = Command::new("slapadd");
    process::run(
        slapadd.arg("-f").arg(&configuration).arg("-l").arg(&content),
        b"",
        STARTING,
    )?;
    let_in(rig.folder())?;
    for path in walk(&folder) {
        give(&path)?;
    }
    let addresses = rig
        .server_addresses(index)
        .map(|address| SocketAddr::new(address, LDAP));
    let urls = addresses.map(|address| format!("ldap://{address}/")).join(" ");
    let configuration = configuration.to_string_lossy();
    // With `-d` it stays in the foreground; it takes the ports as root and goes on as nobody.
    let arguments = [
        "-f",
        &configuration,
        "-h",
        &urls,
        "-u",
        "nobody",
        "-g",
        "nogroup",
        "-d",
        "0",
    ];
    let mut slapd = rig.start(Place::Servers, &format!("slapd-{name}"), "slapd", &arguments)?;
    slapd.wait_for_listeners(&addresses, STARTING)?;
    Ok(slapd)
}

fn content_of(name: &str) -> String {
    let person = |unit: &str, person: &str| {
        format!(
            "dn: ou={unit},dc=example,dc=org
objectClass: organizationalUnit
ou: {unit}

dn: cn={person},ou={unit},dc=example,dc=org
objectClass: person
cn: {person}
sn: {person}
userPassword: {PASSWORD}

"
        )
    };
    format!(
        "dn: dc=example,dc=org
objectClass: dcObject
objectClass: organization
dc: example
o: {name}

{}{}",
        person("people", "alice"),
        person("staff", "bob")
    )
}

/// A folder and everything in it.
fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut paths = vec![folder.to_owned()];
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            paths.extend(walk(&path));
        } else {
            paths.push(path);
        }
    }
    paths
}
