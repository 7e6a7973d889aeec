//! The process: starting, reloading, draining, being taken over, and what it gives up.

use crate::rig::{PATIENCE, Proxy, greeting, in_namespace, rest, tcp_server, wait_for};
use crate::{file_with, header, is_refused, path};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn failing_to_start_is_an_error() {
    let code = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_mmproxy"))
            .args(arguments)
            .output()
            .expect("run")
            .status
            .code()
    };
    assert_eq!(code(&["--nonsense"]), Some(2));
    assert_eq!(code(&["-l", "192.0.2.250:1"]), Some(1), "not an address of this host");
    assert_eq!(code(&["-4", "name.invalid:1"]), Some(1), "a name that does not exist");
    assert_eq!(code(&["--config", "/nonexistent.toml"]), Some(1));
    assert_eq!(code(&["--help"]), Some(0));
}

#[test]
fn reload_keeps_connections_and_a_bad_file_changes_nothing() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let list = file_with("127.0.0.0/8\n");
        let config = file_with(&format!(
            "metrics = \"127.0.0.1:9110\"\n[[listener]]\nlisten = \"127.0.0.1:8443\"\ntarget = \"127.0.0.1:443\"\nallowed_subnets = \"{}\"\n",
            path(&list)
        ));
        let mut proxy = Proxy::start(&["--config", path(&config)], "127.0.0.1:8443");
        let mut old = proxy.send(&header(1));
        greeting(&mut old).expect("served");

        std::fs::write(list.path(), "10.0.0.0/8\n").expect("written");
        proxy.signal(Signal::HUP);
        wait_for("the new list counts", || is_refused(proxy.send(&header(2))));
        old.write_all(b"still").expect("sent");
        let mut echo = [0; 5];
        old.read_exact(&mut echo).expect("old connections stay");

        std::fs::write(list.path(), "127.0.0.0/8\nnonsense\n").expect("written");
        proxy.signal(Signal::HUP);
        std::thread::sleep(Duration::from_millis(300));
        assert!(proxy.is_alive());
        assert!(is_refused(proxy.send(&header(3))), "the last good list stays");

        // A listener more, and the first one elsewhere.
        let text = "[[listener]]\nlisten = \"127.0.0.1:8444-8446\"\ntarget = \"127.0.0.1:443\"\n";
        std::fs::write(config.path(), text).expect("written");
        proxy.signal(Signal::HUP);
        wait_for("the new listener is there", || {
            TcpStream::connect("127.0.0.1:8446").is_ok()
        });
        wait_for("the old listener is gone", || {
            TcpStream::connect("127.0.0.1:8443").is_err()
        });
        old.write_all(b"still").expect("sent");
        old.read_exact(&mut echo).expect("old connections stay");
    });
}

#[test]
fn sigterm_lets_connections_end() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let mut proxy = Proxy::tcp(&[]);
        let mut client = proxy.send(&header(1));
        greeting(&mut client).expect("served");
        proxy.signal(Signal::TERM);
        wait_for("nothing more is accepted", || {
            TcpStream::connect("127.0.0.1:8443").is_err()
        });
        client.write_all(b"last words").expect("sent");
        client.shutdown(Shutdown::Write).expect("end");
        assert_eq!(rest(&mut client), b"last words");
        assert_eq!(proxy.child.wait().expect("it ends").code(), Some(0));
    });
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let mut proxy = Proxy::tcp(&[]);
        let mut client = proxy.send(&header(1));
        greeting(&mut client).expect("served");
        proxy.signal(Signal::TERM);
        std::thread::sleep(Duration::from_millis(200));
        assert!(proxy.is_alive());
        proxy.signal(Signal::TERM);
        let start = Instant::now();
        assert_eq!(proxy.child.wait().expect("it ends").code(), Some(0));
        assert!(
            start.elapsed() < Duration::from_secs(3),
            "a second signal does not wait"
        );
    });
}

#[test]
fn a_new_process_takes_over_without_a_gap() {
    in_namespace(|| {
        // What the old process has not accepted when it closes its socket goes to the new one.
        let migrate = "/proc/sys/net/ipv4/tcp_migrate_req";
        if let Err(error) = std::fs::write(migrate, "1") {
            return crate::rig::lacking(&format!("{migrate}: {error}"));
        }
        tcp_server("127.0.0.1:443");
        let mut old = Proxy::tcp(&[]);
        let mut kept = old.send(&header(1));
        greeting(&mut kept).expect("served by the old one");
        let new = Proxy::tcp_beside_another();
        old.signal(Signal::TERM);
        for port in 2..100 {
            let mut client = new.send(&header(port));
            assert_eq!(
                greeting(&mut client).expect("served by one of them"),
                format!("203.0.113.7:{port}")
            );
        }
        kept.write_all(b"x").expect("sent");
        kept.read_exact(&mut [0]).expect("the old connection goes on");
        drop(kept);
        assert_eq!(old.child.wait().expect("it ends").code(), Some(0));
    });
}

#[test]
fn systemd_passes_sockets_and_is_told() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let directory = tempfile::tempdir().expect("directory");
        let notify = directory.path().join("notify");
        let manager = std::os::unix::net::UnixDatagram::bind(&notify).expect("bound");
        manager.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let listener = crate::rig::listen("127.0.0.1:8443");
        let mut command = Command::new("sh");
        let binary = env!("CARGO_BIN_EXE_mmproxy");
        let line =
            format!("exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {binary} -l systemd -4 127.0.0.1:443");
        command.args(["-c", &line]).env("NOTIFY_SOCKET", &notify);
        command.stdin(std::os::fd::OwnedFd::from(listener));
        let mut child = command.spawn().expect("started");
        let mut state = [0; 64];
        let length = manager.recv(&mut state).expect("told");
        assert_eq!(state[..length].trim_ascii_end(), b"READY=1");
        let mut client = TcpStream::connect("127.0.0.1:8443").expect("connected");
        client.set_read_timeout(Some(PATIENCE)).expect("timeout");
        client.write_all(&header(5)).expect("sent");
        assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:5");
        drop(client);
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, Signal::TERM).expect("signal");
        let length = manager.recv(&mut state).expect("told");
        assert_eq!(state[..length].trim_ascii_end(), b"STOPPING=1");
        assert!(child.wait().expect("it ends").success());
    });
}

/// A socket that was passed stays open when it is listened on no more: clients that come to it wake nobody.
#[test]
fn a_drain_with_a_socket_of_systemd_rests() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let listener = crate::rig::listen("127.0.0.1:8443");
        rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).expect("it is passed on");
        let mut command = Command::new("sh");
        let (binary, passed) = (env!("CARGO_BIN_EXE_mmproxy"), listener.as_raw_fd());
        let line = format!(
            "exec 3<&{passed}; LISTEN_PID=$$ LISTEN_FDS=1 exec {binary} -l systemd -4 127.0.0.1:443 --workers 1"
        );
        command.args(["-c", &line]);
        let mut proxy = Proxy::spawn(command, "127.0.0.1:8443");
        let mut client = proxy.send(&header(5));
        greeting(&mut client).expect("served");
        let pid = rustix::process::Pid::from_child(&proxy.child);
        rustix::process::kill_process(pid, Signal::TERM).expect("signal");
        std::thread::sleep(Duration::from_millis(500));
        let _late = TcpStream::connect("127.0.0.1:8443").expect("the socket is open");
        let before = proxy.cpu_ticks();
        std::thread::sleep(Duration::from_secs(2));
        // Of 200 ticks.
        assert!(proxy.cpu_ticks() - before < 50);
        drop(client);
        assert!(proxy.child.wait().expect("it ends").success());
    });
}

#[test]
fn privileges_are_given_up() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let proxy = Proxy::tcp(&["--user", "nobody"]);
        let mut client = proxy.send(&header(5));
        assert_eq!(greeting(&mut client).expect("still spoofs"), "203.0.113.7:5");
        for thread in std::fs::read_dir(format!("/proc/{}/task", proxy.child.id())).expect("threads") {
            let status = std::fs::read_to_string(thread.expect("thread").path().join("status")).expect("status");
            let field = |name: &str| {
                let line = status
                    .lines()
                    .find_map(|line| line.strip_prefix(name))
                    .unwrap_or_default();
                line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
            };
            assert!(field("Uid:").iter().all(|uid| uid == "65534"), "{status}");
            // CAP_NET_ADMIN is 12, CAP_NET_BIND_SERVICE is 10.
            assert_eq!(field("CapEff:"), ["0000000000001400"]);
            assert_eq!(field("NoNewPrivs:"), ["1"]);
            assert_eq!(field("Seccomp:"), ["2"]);
        }
    });
}

#[test]
fn workers_stay_on_their_cpus() {
    in_namespace(|| {
        tcp_server("127.0.0.1:443");
        let proxy = Proxy::tcp(&["--cpu-affinity", "--workers", "2"]);
        let mut client = proxy.send(&header(5));
        greeting(&mut client).expect("served");
        let task =
            |id: &str, file: &str| std::fs::read_to_string(format!("/proc/{}/task/{id}/{file}", proxy.child.id()));
        // Each names itself and goes to its CPU when it first runs; the one that served may be alone until then.
        let mut cpus = Vec::new();
        wait_for("two workers on a CPU each", || {
            let threads = std::fs::read_dir(format!("/proc/{}/task", proxy.child.id())).expect("threads");
            cpus = threads
                .filter_map(|thread| {
                    let id = thread.ok()?.file_name().into_string().ok()?;
                    let status = task(&id, "status").ok()?;
                    let cpus = status
                        .lines()
                        .find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"))?;
                    let is_one = cpus.parse::<u32>().is_ok();
                    (is_one && task(&id, "comm").ok()?.starts_with("worker")).then(|| cpus.to_owned())
                })
                .collect::<Vec<String>>();
            cpus.len() == 2
        });
        cpus.sort();
        let many = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
        assert_eq!(cpus[0] != cpus[1], many, "{cpus:?}");
    });
}
