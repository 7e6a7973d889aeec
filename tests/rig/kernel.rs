//! Linux behind the engine's port: ssh and ping on the address on which the engine proxies.

use std::fs;
use std::process::Command;
use std::time::Duration;

use rig::engine::EngineOptions;
use rig::process::Process;
use rig::{HOSTS, Place, Rig, RigOptions, SERVERS, process, servers};

use crate::setup::{LIMIT, Setup, family_option};

/// A network namespace of the test's own, removed with the value.
struct Namespace(String);

impl Namespace {
    fn make(rig: &Rig) -> Self {
        let name = format!("{}-kernel", rig.prefix());
        run("ip", &["netns", "add", &name]);
        Self(name)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, program]);
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = process::run(self.command(program).args(arguments), b"", LIMIT);
        output.unwrap_or_else(|error| panic!("{error}")).text()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It has gone already if the test could not make it.
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

fn run(program: &str, arguments: &[&str]) {
    let output = process::run(Command::new(program).args(arguments), b"", LIMIT);
    output.unwrap_or_else(|error| panic!("{error}"));
}

/// OpenSSH with keys of this test's own; the path of the key that it lets in, and its own public key.
fn start_sshd(rig: &Rig, namespace: &Namespace) -> (Process, String, String) {
    let file = |name: &str| rig.file(name).to_string_lossy().into_owned();
    for key in ["host_key", "client_key"] {
        run("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &file(key)]);
    }
    fs::copy(rig.file("client_key.pub"), rig.file("authorized")).expect("copied");
    let settings = [
        ("Port", "22".to_owned()),
        ("HostKey", file("host_key")),
        ("AuthorizedKeysFile", file("authorized")),
        ("PidFile", "none".to_owned()),
        ("UsePAM", "no".to_owned()),
        ("StrictModes", "no".to_owned()),
        ("PasswordAuthentication", "no".to_owned()),
        ("PermitRootLogin", "prohibit-password".to_owned()),
    ];
    let text: String = settings.iter().map(|(key, value)| format!("{key} {value}\n")).collect();
    fs::write(rig.file("sshd_config"), text).expect("written");
    let mut command = namespace.command("/usr/sbin/sshd");
    command.args(["-D", "-e", "-f", &file("sshd_config")]);
    let mut sshd = Process::start(&mut command, &rig.file("sshd.log")).expect("sshd starts");
    let listens = |_: &Process| namespace.run("ss", &["-Hltn", "sport = :22"]).contains(":22");
    sshd.wait_for("listening", LIMIT, listens)
        .unwrap_or_else(|error| panic!("{error}"));
    let public = fs::read_to_string(rig.file("host_key.pub")).expect("a public key");
    let words: Vec<&str> = public.split(' ').take(2).collect();
    (sshd, file("client_key"), words.join(" "))
}

fn engine_options(namespace: &Namespace) -> EngineOptions {
    EngineOptions {
        server_port: format!(
            "kernel = {{ device = \"pe-k0\", namespace = \"{}\", local_ports = \"61000-61999\" }}\n",
            namespace.0
        ),
        ..EngineOptions::default()
    }
}

#[test]
fn the_kernel_answers_ssh_and_ping_on_the_engines_address_while_it_proxies() {
    // OpenSSH's separation of privileges wants this folder, which Debian's service makes.
    let made_folder = fs::create_dir("/run/sshd").is_ok();
    let tools = [
        "sshd",
        "ssh",
        "ssh-keygen",
        "ssh-keyscan",
        "ss",
        "ping",
        "curl",
        "nginx",
    ];
    let Some(rig) = Rig::for_test(RigOptions::default(), &tools) else {
        return;
    };
    let namespace = Namespace::make(&rig);
    let setup = Setup::on(rig, &engine_options(&namespace), |rig| {
        (0..SERVERS)
            .map(|index| servers::start_nginx(rig, index).expect("nginx starts"))
            .collect()
    });
    let (mut sshd, key, public) = start_sshd(&setup.rig, &namespace);
    let rig = &setup.rig;
    for address in rig.engine_addresses() {
        let text = address.to_string();
        // The kernel's part: a ping, the host's key, and a command by ssh.
        let ping = [family_option(address), "-n", "-q", "-c", "3", "-i", "0.2", &text];
        let said = rig.run(Place::Clients, "ping", &ping, LIMIT).expect("answers").text();
        assert!(said.contains("3 received"), "{said}");
        let scanned = rig.run(
            Place::Clients,
            "ssh-keyscan",
            &["-T", "30", "-t", "ed25519", &text],
            LIMIT,
        );
        assert_eq!(scanned.expect("a key").text().trim(), format!("{text} {public}"));
        let login = format!("root@{text}");
        let options = [
            "UserKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=no",
            "BatchMode=yes",
            "IdentitiesOnly=yes",
        ];
        let mut arguments = vec!["-F", "none", "-i", &key];
        arguments.extend(options.iter().flat_map(|option| ["-o", option]));
        // A megabyte comes back, in full frames.
        arguments.extend([
            login.as_str(),
            "ip -o link show pe-k0; head -c 1000000 /dev/zero | wc -c; head -c 1000000 /dev/zero",
        ]);
        let output = rig
            .run(Place::Clients, "ssh", &arguments, LIMIT)
            .unwrap_or_else(|error| {
                panic!("{error}\n{}", sshd.printed());
            });
        assert!(output.stdout.len() > 1_000_000, "{} bytes", output.stdout.len());
        assert!(output.text().contains("pe-k0"), "it ran where the interface is");
        // The engine's part, on the same address at the same time.
        for (index, host) in HOSTS.iter().enumerate() {
            let url = match address {
                std::net::IpAddr::V4(v4) => format!("http://{v4}/"),
                std::net::IpAddr::V6(v6) => format!("http://[{v6}]/"),
            };
            let header = format!("Host: {host}");
            let page = rig.run(
                Place::Clients,
                "curl",
                &["-sS", "-g", "-m", "20", "-H", &header, &url],
                LIMIT,
            );
            let page = page.unwrap_or_else(|error| panic!("{error}")).text();
            assert!(page.starts_with(&servers::name_of(index)), "{page}");
        }
    }
    // The other way: the kernel asks a server, by ping and by TCP from the ports that are its own.
    let [server, _] = rig.server_addresses(0);
    let said = namespace.run("ping", &["-n", "-q", "-c", "2", "-i", "0.2", &server.to_string()]);
    assert!(said.contains("2 received"), "{said}");
    let page = namespace.run(
        "curl",
        &[
            "-sS",
            "-m",
            "20",
            "-w",
            " from %{local_port}",
            &format!("http://{server}/"),
        ],
    );
    let port: u16 = page
        .rsplit(' ')
        .next()
        .and_then(|port| port.parse().ok())
        .expect("a port");
    assert!((61_000..=61_999).contains(&port), "{page}");

    assert!(sshd.is_running());
    drop(sshd);
    std::thread::sleep(Duration::from_millis(50));
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), 2 * HOSTS.len(), "curl's connections and no other");
    for name in ["passed", "sent", "written", "read"] {
        assert!(
            report.number(&format!("/counters/kernel/{name}")) > 20,
            "{name} in {}",
            report.totals
        );
    }
    for name in ["rate_limited", "queue_full", "foreign_source", "too_long"] {
        assert_eq!(report.number(&format!("/counters/kernel_drops/{name}")), 0, "{name}");
    }
    assert_eq!(
        report.number("/counters/neighbour/echo_answered"),
        0,
        "pings are the kernel's"
    );
    // The interface went with the engine.
    assert!(!namespace.run("ip", &["-o", "link", "show"]).contains("pe-k0"));
    drop(namespace);
    if made_folder {
        let _ = fs::remove_dir("/run/sshd");
    }
}
