//! Connections when mmproxy ends: they stay where they are pinned, and end by RST where not.

use super::*;
use ::rig::lacking;
use rustix::process::Signal;

/// A BPF file system of the test's own.
struct BpfFs(tempfile::TempDir);

impl BpfFs {
    /// `None`, and the reason said, where there can be none.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let mount = Command::new("mount")
            .args(["-t", "bpf", "bpf"])
            .arg(folder.path())
            .output();
        if mount.is_ok_and(|output| output.status.success()) {
            return Some(BpfFs(folder));
        }
        lacking("inline::restart", "no BPF file system can be mounted");
        None
    }

    fn pins(&self) -> String {
        self.0.path().join("mmproxy").display().to_string()
    }
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        // What is pinned in it ends with it.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// A connection that has been served, from this port of the client.
fn open(container: &Container, port: u16) -> TcpStream {
    container.run(move || {
        let mut client = connect(V4);
        client.write_all(&numbered(port)).expect("sent");
        assert_eq!(greeting(&mut client).expect("served"), format!("203.0.113.7:{port}"));
        client
    })
}

fn assert_lives(client: &mut TcpStream) {
    client.write_all(b"still there").expect("sent");
    let mut echo = [0; 11];
    client.read_exact(&mut echo).expect("echoed");
    assert_eq!(&echo, b"still there");
}

#[test]
fn pinned_connections_outlive_a_kill_and_go_on_with_the_next_mmproxy() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        let Some(bpf) = BpfFs::new() else { return };
        let pins = bpf.pins();
        let start = || inline(&[&format!("--pin={pins}")]);
        let mut proxy = start();
        let mut first = open(container, 40_001);
        proxy.signal(Signal::KILL);
        wait_for("it has ended", || !proxy.is_alive());
        assert_lives(&mut first);
        // Who would take what is not plain has gone: nobody is let in by halves.
        container.run(|| assert!(TcpStream::connect(V4).is_err()));

        let mut proxy = start();
        wait_for("it knows them", || metric("mmproxy_inline_active") == 1);
        assert_lives(&mut first);
        let mut second = open(container, 40_002);
        // The client's port is still taken.
        let seen = container.run(|| exchange(V4, &whole(&numbered(40_001))));
        assert!(
            seen.starts_with("203.0.113.7:") && seen != "203.0.113.7:40001",
            "{seen}"
        );

        // The usual end waits for nobody, and takes nobody along.
        let begin = std::time::Instant::now();
        proxy.signal(Signal::TERM);
        wait_for("it has ended", || !proxy.is_alive());
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        assert_lives(&mut first);
        assert_lives(&mut second);
        let _proxy = start();
        assert_lives(&mut first);
        drop((first, second));
        wait_for("both are forgotten", || metric("mmproxy_inline_active") == 0);
    });
}

/// A handshake that the one has answered, and a header that comes to the next.
#[test]
fn cookies_outlive_a_restart() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        let Some(bpf) = BpfFs::new() else { return };
        let pin = format!("--pin={}", bpf.pins());
        let proxy = inline(&[&pin]);
        let mut client = container.run(|| connect(V4));
        drop(proxy);
        let _proxy = inline(&[&pin]);
        client.write_all(&numbered(40_001)).expect("sent");
        assert_eq!(greeting(&mut client).expect("served"), "203.0.113.7:40001");
    });
}

#[test]
fn connections_that_are_not_pinned_end_by_a_reset_after_a_kill() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        let mut proxy = inline(&[]);
        let mut client = open(container, 40_001);
        proxy.signal(Signal::KILL);
        wait_for("it has ended", || !proxy.is_alive());
        client.write_all(b"still there?").expect("sent");
        let error = client.read(&mut [0; 64]).expect_err("ended");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn connections_may_finish_while_it_drains_and_no_others_begin() {
    with_balancer(|container| {
        tcp_server("127.0.0.1:443");
        let mut proxy = inline(&[]);
        let mut client = open(container, 40_001);
        let begin = std::time::Instant::now();
        proxy.signal(Signal::TERM);
        std::thread::sleep(Duration::from_millis(500));
        container.run(|| assert!(TcpStream::connect(V4).is_err()));
        assert!(proxy.is_alive());
        assert_lives(&mut client);
        drop(client);
        wait_for("it has ended", || !proxy.is_alive());
        // It has waited for that connection, not for the ten seconds that it may.
        assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    });
}

#[test]
fn pinning_needs_a_bpf_file_system_and_inline_listeners() {
    let text = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_mmproxy")).args(arguments).output();
        let output = output.expect("mmproxy runs");
        assert!(!output.status.success());
        String::from_utf8(output.stderr).expect("text")
    };
    let said = text(&["-l", "127.0.0.1:8442", "--pin"]);
    assert!(said.contains("cpu_affinity"), "{said}");
    in_bare_namespace(move |_| {
        if let Some(reason) = missing() {
            return skip_for_kernel(&reason);
        }
        let folder = tempfile::tempdir().expect("a folder");
        let pin = format!("--pin={}", folder.path().join("pins").display());
        let said = text(&["-l", "127.0.0.1:8442", "--inline", "-i", "lo", &pin]);
        assert!(said.contains("mount -t bpf"), "{said}");
    });
}
