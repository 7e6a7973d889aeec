//! Servers that nobody here wrote, and servers that use the kernel's short cuts: unmodified behind inline mode.

use super::*;
use ::rig::process::{Process, run as run_command};
use rustix::net::SendFlags;
use std::os::fd::AsFd;
use std::path::Path;

/// Longest wait for a server's start.
const STARTING: Duration = Duration::from_secs(30);

const CLIENT: &str = "203.0.113.7:40001";

/// Runs `test` with a server that `start` has started on 127.0.0.1:443, once it listens.
fn with_server(
    programs: &'static [&'static str],
    start: impl FnOnce(&Path) -> Command + Send + 'static,
    test: impl FnOnce(&Container, &mut Process) + Send + 'static,
) {
    let missing: Vec<_> = programs.iter().filter(|program| !Path::new(program).exists()).collect();
    if !missing.is_empty() {
        return rig::skip(&format!("missing: {missing:?}"));
    }
    with_balancer(move |container| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut server = Process::start(&mut start(folder.path()), &folder.path().join("log")).expect("started");
        let at = SocketAddr::from(([127, 0, 0, 1], 443));
        server.wait_for_listeners(&[at], STARTING).expect("it listens");
        let _proxy = inline(&[]);
        test(container, &mut server);
        wait_for("it was inline", || counted("assigned") > 0);
        assert_eq!(counted("fall_back"), 0);
    });
}

/// Sends the header with `request`, and reads until `until` has come.
fn ask(container: &Container, request: &'static [u8], until: &'static str) -> String {
    container.run(move || {
        let mut client = connect(V4);
        client.write_all(&[&numbered(40_001), request].concat()).expect("sent");
        let mut text = Vec::new();
        let mut buffer = [0; 4096];
        while !String::from_utf8_lossy(&text).contains(until) {
            match client.read(&mut buffer) {
                Ok(count @ 1..) => text.extend(&buffer[..count]),
                other => panic!("{other:?} before {until}: {}", String::from_utf8_lossy(&text)),
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    })
}

#[test]
fn nginx() {
    let start = |folder: &Path| {
        let folder = folder.display();
        let text = format!(
            "daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error; user root;\n\
             events {{ }} http {{ access_log off; sendfile on; server {{ listen 127.0.0.1:443; root {folder};\n\
             location = /who {{ return 200 \"$remote_addr:$remote_port\"; }} }} }}"
        );
        let file = format!("{folder}/nginx.conf");
        std::fs::write(&file, text).expect("written");
        std::fs::write(format!("{folder}/large"), vec![b'x'; 3_000_000]).expect("written");
        let mut command = Command::new("/usr/sbin/nginx");
        command.args(["-c", &file]);
        command
    };
    with_server(&["/usr/sbin/nginx"], start, |container, _| {
        let answer = ask(container, b"GET /who HTTP/1.1\r\nHost: a\r\n\r\n", CLIENT);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let length = container.run(|| {
            let mut client = connect(V4);
            let request = b"GET /large HTTP/1.0\r\n\r\n";
            client
                .write_all(&[&numbered(40_002), &request[..]].concat())
                .expect("sent");
            rest(&mut client).iter().filter(|&&byte| byte == b'x').count()
        });
        assert!((3_000_000..3_000_100).contains(&length), "{length} bytes");
    });
}

#[test]
fn redis() {
    let start = |folder: &Path| {
        let mut command = Command::new("/usr/bin/redis-server");
        command.args([
            "--bind",
            "127.0.0.1",
            "--port",
            "443",
            "--save",
            "",
            "--protected-mode",
            "no",
            "--dir",
        ]);
        command.arg(folder);
        command
    };
    with_server(&["/usr/bin/redis-server"], start, |container, _| {
        ask(container, b"CLIENT LIST\r\n", "addr=203.0.113.7:40001 ");
    });
}

/// It speaks first, when the header alone has come.
#[test]
fn openssh() {
    let start = |folder: &Path| {
        // OpenSSH's separation of privileges wants this folder, which Debian's service makes.
        let _ = std::fs::create_dir("/run/sshd");
        let key = folder.join("key").display().to_string();
        let mut make = Command::new("ssh-keygen");
        make.args(["-q", "-t", "ed25519", "-N", "", "-f", &key]);
        run_command(&mut make, b"", STARTING).expect("a key");
        let mut command = Command::new("/usr/sbin/sshd");
        command.args(["-D", "-e", "-f", "/dev/null", "-h", &key]);
        for option in [
            "Port=443",
            "ListenAddress=127.0.0.1",
            "LogLevel=VERBOSE",
            "PidFile=none",
            "UsePAM=no",
        ] {
            command.args(["-o", option]);
        }
        command
    };
    with_server(
        &["/usr/sbin/sshd", "/usr/bin/ssh-keygen"],
        start,
        |container, server| {
            ask(container, b"", "SSH-2.0-OpenSSH");
            wait_for("it has logged its client", || {
                server.printed().contains("Connection from 203.0.113.7 port 40001")
            });
        },
    );
}

/// The folder of PostgreSQL's programs, which Debian keeps out of the search path.
fn postgres_program(name: &str) -> Option<String> {
    let program = ::rig::servers::postgres_program();
    let program = program.with_file_name(name);
    program.exists().then(|| program.display().to_string())
}

#[test]
fn postgresql() {
    let (Some(initdb), Some(postgres)) = (postgres_program("initdb"), postgres_program("postgres")) else {
        return rig::skip("PostgreSQL is missing");
    };
    let start = move |folder: &Path| {
        let data = folder.join("data");
        // It does not run as root.
        let unprivileged = |program: &str| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", program, "-D"]);
            command.arg(&data);
            command
        };
        std::fs::create_dir(&data).expect("a folder");
        for path in [folder, &data] {
            std::os::unix::fs::chown(path, Some(65_534), Some(65_534)).expect("given");
        }
        let mut make = unprivileged(&initdb);
        make.args(["--auth=trust", "--username=owner", "--locale=C", "--no-sync"]);
        run_command(&mut make, b"", STARTING).expect("made");
        std::fs::write(data.join("pg_hba.conf"), "host all all all trust\n").expect("written");
        let mut command = unprivileged(&postgres);
        for setting in [
            "listen_addresses=127.0.0.1",
            "port=443",
            "unix_socket_directories=",
            "fsync=off",
        ] {
            command.args(["-c", setting]);
        }
        // Its network's own privilege: ports below 1024 are root's elsewhere.
        run("sysctl -q -w net.ipv4.ip_unprivileged_port_start=0");
        command
    };
    with_server(&[], start, |container, _| {
        const START: &[u8] = b"\0\0\0\x26\0\x03\0\0user\0owner\0database\0postgres\0\0";
        const QUERY: &[u8] = b"select host(inet_client_addr()) || ':' || inet_client_port()\0";
        let mut request = START.to_vec();
        request.push(b'Q');
        request.extend((QUERY.len() as u32 + 4).to_be_bytes());
        request.extend(QUERY);
        ask(container, request.leak(), CLIENT);
    });
}

/// Where Go may be, of Debian or of its makers.
const GO: [&str; 3] = ["/usr/local/go/bin/go", "/usr/lib/go/bin/go", "/usr/bin/go"];

/// No library can be put before it.
#[test]
fn static_programs_in_go() {
    let Some(go) = GO.iter().find(|program| Path::new(program).exists()) else {
        return ::rig::lacking("static_programs_in_go", "Go is missing");
    };
    let start = move |folder: &Path| {
        let program = folder.join("who");
        let mut build = Command::new(go);
        build.args(["build", "-o"]).arg(&program);
        build.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/inline/who.go"));
        build.env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go"));
        for (name, value) in [("CGO_ENABLED", "0"), ("GO111MODULE", "off"), ("GOTOOLCHAIN", "local")] {
            build.env(name, value);
        }
        run_command(&mut build, b"", Duration::from_secs(300)).expect("it is built");
        let bytes = std::fs::read(&program).expect("the program");
        assert!(!bytes.windows(9).any(|bytes| bytes == b"/ld-linux"), "it has a loader");
        let mut command = Command::new(&program);
        // From Go 1.24 on it would listen for Multipath TCP.
        command.env("GODEBUG", "multipathtcp=0");
        command
    };
    with_server(&[], start, |container, _| {
        let seen = container.run(|| exchange(V4, &whole(&numbered(40_001))));
        assert_eq!(seen, CLIENT);
    });
}

/// The kernel takes no handshake of ours for them.
#[test]
fn servers_with_multipath_tcp_have_two_sockets() {
    with_balancer(|container| {
        let multipath = Some(socket2::Protocol::from(libc::IPPROTO_MPTCP));
        let socket = match socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, multipath) {
            Ok(socket) => socket,
            Err(error) => return skip_for_kernel(&format!("Multipath TCP: {error}")),
        };
        socket.set_reuse_address(true).expect("reuse");
        let address: SocketAddr = "127.0.0.1:443".parse().expect("address");
        socket.bind(&address.into()).expect("bound");
        socket.listen(64).expect("listening");
        let listener = std::net::TcpListener::from(socket);
        let _proxy = inline(&[]);
        std::thread::spawn(move || {
            let (mut client, from) = listener.accept().expect("a client");
            let _ = client.write_all(format!("{from}\n").as_bytes());
            let _ = std::io::copy(&mut client.try_clone().expect("clone"), &mut client);
            let _ = client.shutdown(Shutdown::Write);
        });
        let seen = container.run(|| exchange(V4, &whole(&numbered(40_001))));
        assert_eq!(seen, CLIENT);
        wait_for("it fell back", || counted("fall_back") == 1);
        assert_eq!((counted("assigned"), counted("failed")), (0, 0));
    });
}

/// What a server does with the connection: the greeting is the test's, the rest comes by this.
fn served_by(act: impl Fn(&TcpStream, &[u8]) + Send + Sync + 'static) {
    with_balancer(move |container| {
        let body: Arc<[u8]> = (0..1_000_000u32).map(|index| (index / 7) as u8).collect();
        let sent = Arc::clone(&body);
        serve("127.0.0.1:443", move |mut client, from| {
            let _ = client.write_all(format!("{from}\n").as_bytes());
            act(&client, &sent);
            let _ = client.shutdown(Shutdown::Write);
        });
        let _proxy = inline(&[]);
        container.run(move || {
            let mut client = connect(V4);
            client
                .write_all(&[&numbered(40_001), &body[..]].concat())
                .expect("sent");
            client.shutdown(Shutdown::Write).expect("end");
            assert_eq!(greeting(&mut client).expect("served"), CLIENT);
            assert!(rest(&mut client) == *body, "another content");
        });
        wait_for("it was inline", || counted("assigned") == 1);
    });
}

/// It echoes without ever seeing a byte.
#[test]
fn servers_that_splice() {
    served_by(|client, _| {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let flags = rustix::pipe::SpliceFlags::MOVE;
        let splice = |from: rustix::fd::BorrowedFd<'_>, to: rustix::fd::BorrowedFd<'_>, most| {
            rustix::pipe::splice(from, None, to, None, most, flags).expect("spliced")
        };
        // The client reads only after it has written all: what is under way must fit somewhere.
        std::thread::scope(|scope| {
            let mut input = client.try_clone().expect("clone");
            let (sender, inbox) = std::sync::mpsc::channel::<usize>();
            let (reader, writer) = (&reader, &writer);
            scope.spawn(move || {
                while let Ok(mut count) = inbox.recv() {
                    while count > 0 {
                        count -= splice(reader.as_fd(), client.as_fd(), count);
                    }
                }
            });
            let _ = input.flush();
            loop {
                match splice(input.as_fd(), writer.as_fd(), 65_536) {
                    0 => break,
                    count => sender.send(count).expect("taken"),
                }
            }
        });
    });
}

fn read_all(client: &TcpStream) {
    let mut client = client;
    let _ = std::io::copy(&mut client, &mut std::io::sink());
}

#[test]
fn servers_that_send_files() {
    served_by(|client, body| {
        read_all(client);
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(body).expect("written");
        let mut offset = 0;
        while offset < body.len() as u64 {
            rustix::fs::sendfile(client, &file, Some(&mut offset), body.len()).expect("sent");
        }
    });
}

#[test]
fn servers_that_send_without_a_copy() {
    const MSG_ZEROCOPY: SendFlags = SendFlags::from_bits_retain(0x400_0000);
    served_by(|client, body| {
        read_all(client);
        mmproxy::sys::set_option(client, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1).expect("allowed");
        let mut sent = 0;
        while sent < body.len() {
            sent += rustix::net::send(client, &body[sent..], MSG_ZEROCOPY).expect("sent");
        }
    });
}
