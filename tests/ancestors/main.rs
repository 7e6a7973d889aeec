//! ProxyEngine's four tests, under their own names and with the files that they ship with.
//!
//! The scenarios are theirs: which servers there are, how many clients come, what they write, how long they wait. What they
//! assert is said again as far as it means something here, and what they leave open is stated: which server has answered,
//! what it was sent, each record's states and causes, how the client's connection ended. Where our records differ, the test
//! says why. Where their file has two cores there are two workers, and their card is a software NIC with its limits, so that
//! receive-flow steering has something to steer.

mod proxy;
#[path = "../rig/setup.rs"]
#[allow(dead_code)] // what other tests need of it
mod setup;

use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use proxy::{Counters, Proxy, Record};
use setup::LIMIT;

/// One client after the other writes "`n` stars"; seven servers answer with thanks in their name, and close.
fn each_server_thanks(name: &str, connections: usize) {
    let Some((proxy, servers)) = Proxy::start_before(name, 7) else {
        return;
    };
    for n in 1..=connections {
        let mut client = proxy.say(&format!("{n} stars"));
        client.set_read_timeout(Some(LIMIT)).expect("a limit");
        let mut answer = String::new();
        if let Err(error) = client.read_to_string(&mut answer) {
            let (counters, records) = proxy.stop();
            panic!("client {n}: {error}; {records:#?} {counters:#?}");
        }
        assert_eq!(answer, format!("Thank You from server {}", n % 7 + 1));
    }
    let expected: Vec<_> = (1..=connections).map(|n| (n % 7, format!("{n} stars"))).collect();
    assert_eq!(servers.heard(), expected, "each server has what was meant for it");

    let (counters, records) = proxy.stop();
    assert_eq!(records.len(), connections);
    for (n, record) in (1..=connections).zip(&records) {
        let server = format!("server-{} 192.168.222.32:{}", n % 7 + 1, 12345 + n % 7);
        assert_eq!(record.server.as_deref(), Some(server.as_str()), "{record:?}");
        assert!(record.client.starts_with("192.168.222.101:"), "{record:?}");
        assert_eq!(
            record.bytes,
            [format!("{n} stars").len(), "Thank You from server 1".len()]
        );
        // The server has closed first.
        assert_eq!(
            (record.client_cause(), record.server_cause()),
            ("PassiveClose", "ActiveClose")
        );
        assert_eq!(
            record.client_states[..3],
            ["SynSent", "Established", "Payload"],
            "{record:?}"
        );
        assert_eq!(record.server_states[..2], ["SynReceived", "Established"], "{record:?}");
        for states in [&record.client_states, &record.server_states] {
            assert_eq!(states.last().map(String::as_str), Some("Closed"), "{record:?}");
        }
    }
    assert_balanced(&counters, connections as u64);
    let steering = |name: &str| counters.count("steering", name);
    assert_eq!(
        (steering("mis_steered"), steering("handed_over")),
        (0, 0),
        "steered by the card"
    );
}

/// What they assert of their counters, in their words.
fn assert_balanced(counters: &Counters, connections: u64) {
    let [client, server] = ["tcp_client", "tcp_server"].map(|side| move |name: &str| counters.count(side, name));
    for name in ["SentSyn", "SentSynAck2", "RecvSynAck", "SentPayload"] {
        assert_eq!(server(name), connections, "{name}");
    }
    for name in ["RecvSyn", "SentSynAck", "RecvPayload"] {
        assert_eq!(client(name), connections, "{name}");
    }
    let both = |side: &dyn Fn(&str) -> u64, name: &str| side(name) + side(&format!("{name}Pssv"));
    assert_eq!(both(&server, "RecvFin"), both(&client, "RecvFin"));
    assert!(both(&client, "SentFin") <= client("RecvAck4Fin"));
    assert!(both(&server, "SentFin") <= server("RecvAck4Fin"));
}

/// The records of ten clients, each of which was sent away when its server had not answered in time.
fn assert_all_timed_out(records: &[Record]) {
    assert_eq!(records.len(), 10);
    for record in records {
        assert_eq!(record.client_states, ["SynSent", "Established", "Payload", "Closed"]);
        assert_eq!(record.server_states, ["SynReceived", "Closed"]);
        assert_eq!(
            (record.client_cause(), record.server_cause()),
            ("ServerTimeout", "ServerTimeout")
        );
        assert_eq!(record.bytes, [0, 0], "nothing has reached a server");
    }
    for server in ["server-1 192.168.222.244:12345", "server-2 192.168.222.244:12346"] {
        let chosen = records.iter().filter(|record| record.server.as_deref() == Some(server));
        assert_eq!(chosen.count(), 5, "{server}");
    }
}

#[test]
fn test_rfs_ip() {
    each_server_thanks("test_rfs_ip", 8);
}

#[test]
fn test_rfs_port() {
    each_server_thanks("test_rfs_port", 16);
}

/// Ten clients at once close 50 ms after they have written, to servers that do not exist.
#[test]
fn client_syn_fin() {
    let Some(proxy) = Proxy::start("client_syn_fin") else {
        return;
    };
    thread::scope(|scope| {
        for n in 0..10 {
            let proxy = &proxy;
            scope.spawn(move || {
                let mut client = proxy.say(&format!("{n} stars"));
                client
                    .set_read_timeout(Some(Duration::from_millis(50)))
                    .expect("a limit");
                let silence = client.read(&mut [0; 256]).expect_err("nobody answers");
                assert_eq!(silence.kind(), ErrorKind::WouldBlock);
                client.shutdown(Shutdown::Write).expect("closed");
                // Theirs is told that all is well. Its `established` is five seconds.
                client.set_read_timeout(Some(LIMIT)).expect("a limit");
                let end = client.read(&mut [0; 256]).expect_err("nobody ever answers");
                assert_eq!(end.kind(), ErrorKind::ConnectionReset, "and the client is told");
            });
        }
    });
    let (_, records) = proxy.stop();
    assert_all_timed_out(&records);
}

/// Ten clients, 48 ms apart, wait for servers that do not exist. Theirs give up after six seconds, one more than the engine.
#[test]
fn timeout() {
    let Some(proxy) = Proxy::start("timeout") else { return };
    thread::scope(|scope| {
        for n in 0..10 {
            let proxy = &proxy;
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(48) * n);
                let mut client = proxy.say(&format!("{n} stars"));
                client.set_read_timeout(Some(LIMIT)).expect("a limit");
                let end = client.read(&mut [0; 256]).expect_err("nobody answers");
                assert_eq!(end.kind(), ErrorKind::ConnectionReset, "and the client is told");
            });
        }
    });
    let (_, records) = proxy.stop();
    assert_all_timed_out(&records);
}
