//! `openssl s_client` to three `openssl s_server` by server name.

use std::net::{IpAddr, SocketAddr};

use rig::capture::{Capture, Segment, Tap};
use rig::engine::EngineOptions;
use rig::loss::{Direction, Loss};
use rig::servers::{self, Certificates};
use rig::{HOSTS, Place, Rig, RigOptions, SERVERS, process};

use crate::setup::{LIMIT, Setup};

fn with_s_server() -> Option<(Setup, Certificates)> {
    with_s_server_and(&EngineOptions::default())
}

fn with_s_server_and(options: &EngineOptions) -> Option<(Setup, Certificates)> {
    let mut certificates = None;
    let start = |rig: &Rig| {
        let made = certificates.insert(Certificates::make(rig).expect("certificates"));
        (0..SERVERS)
            .flat_map(|index| servers::start_tls(rig, index, made).expect("s_server starts"))
            .collect()
    };
    let setup = Setup::new(RigOptions::default(), options, &["openssl", "nft"], start)?;
    Some((setup, certificates?))
}

/// Connects to the engine with s_client, which verifies the certificate of `host`, and asks the server for its name.
fn handshake(rig: &Rig, certificates: &Certificates, address: IpAddr, wanted: usize, options: &[&str]) {
    let at = SocketAddr::new(address, servers::TLS).to_string();
    let mut s_client = rig.command(Place::Clients, "openssl");
    s_client
        .args([
            "s_client",
            "-quiet",
            "-verify_return_error",
            "-connect",
            &at,
            "-servername",
            HOSTS[wanted],
        ])
        .args(["-verify_hostname", HOSTS[wanted], "-CAfile"])
        .arg(certificates.trusted())
        .args(options);
    let output =
        process::run(&mut s_client, b"GET /whoami HTTP/1.0\r\n\r\n", LIMIT).expect("a handshake and an answer");
    assert_eq!(servers::named_in(&output.text()), Some(wanted), "{}", output.text());
    let subject = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        subject.contains(&format!("O = {}, CN = {}", servers::name_of(wanted), HOSTS[wanted])),
        "{subject}"
    );
}

fn handshakes_of_all(setup: &Setup, certificates: &Certificates, addresses: &[IpAddr], options: &[&str]) {
    for &address in addresses {
        (0..SERVERS).for_each(|wanted| handshake(&setup.rig, certificates, address, wanted, options));
    }
}

/// Segments with data that clients sent before the engine's port answered with data, by connection.
fn hello_segments(segments: &[Segment]) -> Vec<Vec<&Segment>> {
    let opens = segments.iter().filter(|segment| segment.opens());
    opens
        .map(|syn| {
            let answer = segments
                .iter()
                .find(|segment| segment.to == syn.from && segment.payload > 0);
            let until = answer.map(|segment| segment.time).expect("the server has spoken");
            let sent = |segment: &&Segment| segment.from == syn.from && segment.payload > 0 && segment.time < until;
            segments.iter().filter(sent).collect()
        })
        .collect()
}

#[test]
fn s_client_reaches_the_server_of_its_name() {
    let Some((setup, certificates)) = with_s_server() else {
        return;
    };
    let both = setup.rig.engine_addresses();
    for versions in [["-tls1_3"], ["-tls1_2"]] {
        handshakes_of_all(&setup, &certificates, &both, &versions);
    }
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), 2 * 2 * SERVERS);
}

#[test]
fn a_hello_as_long_as_post_quantum_keys_make_it_comes_in_several_segments() {
    let Some((setup, certificates)) = with_s_server() else {
        return;
    };
    // X25519MLKEM768 adds 1184 bytes of key share; OpenSSL 3.0 has none, so a long ALPN list stands for it.
    let protocols = vec!["p".repeat(150); 12].join(",");
    let capture = Capture::start(&setup.rig, Tap::Clients).expect("tcpdump");
    handshakes_of_all(
        &setup,
        &certificates,
        &setup.rig.engine_addresses(),
        &["-alpn", &protocols],
    );
    let segments = capture.finish().expect("a capture");
    let hellos = hello_segments(&segments);
    assert_eq!(hellos.len(), 2 * SERVERS);
    for hello in hellos {
        let length: u32 = hello.iter().map(|segment| segment.payload).sum();
        assert!(
            hello.len() >= 2 && length > 1700,
            "{length} bytes in {} segments",
            hello.len()
        );
    }
    setup.finish();
}

/// The server name stands in the second of three or more segments, and that one is lost. The engine has acknowledged the
/// first and keeps the others, and the client repeats what is missing: nobody waits for the other.
#[test]
fn a_hello_that_loses_the_segment_with_the_name_gets_through() {
    let options = EngineOptions {
        tables: "[syn_ack]\nmss = 116\n".into(),
        ..EngineOptions::default()
    };
    let Some((setup, certificates)) = with_s_server_and(&options) else {
        return;
    };
    for (address, wanted) in setup.rig.engine_addresses().into_iter().zip([1, 2]) {
        // Of the segments with data from the client the second is lost, once.
        let family = if address.is_ipv4() { "ip" } else { "ip6" };
        let second = format!("{family} daddr {address} tcp dport 443 meta length > 120 numgen inc mod 100000 == 1");
        let capture = Capture::start(&setup.rig, Tap::Clients).expect("tcpdump");
        let loss = Loss::of(&setup.rig, &[Direction::FromClients], &second).expect("nftables");
        handshake(&setup.rig, &certificates, address, wanted, &[]);
        assert_eq!(loss.lost().expect("a counter"), 1);
        drop(loss);
        let segments = capture.finish().expect("a capture");
        let hello = hello_segments(&segments).remove(0);
        let (first, second) = (hello[0], hello[1]);
        // OpenSSL 3 has 11 bytes of headers, 34 of version and random number, 33 of session and 60 or more of ciphers before
        // the first extension, which is the name.
        assert!(
            first.payload <= 116 && second.sequence == first.sequence.wrapping_add(first.payload),
            "{hello:?}"
        );
        let copies = hello
            .iter()
            .filter(|segment| segment.sequence == second.sequence)
            .count();
        assert!(copies >= 2, "it was repeated: {hello:?}");
        let acknowledged = segments
            .iter()
            .any(|segment| segment.from.ip() == address && segment.ack && segment.acknowledgement == second.sequence);
        assert!(acknowledged, "what came before it was acknowledged meanwhile");
    }
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), 2);
}

#[test]
fn a_server_name_beyond_the_first_segment_is_found() {
    let Some((setup, certificates)) = with_s_server() else {
        return;
    };
    let address = setup.rig.engine_v4().to_string();
    // 104 bytes of data in a segment: the name stands after about 160 bytes of hello.
    let route = ["route", "add", &address, "dev", "eth0", "mtu", "lock", "156"];
    setup
        .rig
        .run(Place::Clients, "ip", &route, LIMIT)
        .expect("a narrow route");
    let capture = Capture::start(&setup.rig, Tap::Clients).expect("tcpdump");
    handshakes_of_all(&setup, &certificates, &[setup.rig.engine_v4().into()], &[]);
    let segments = capture.finish().expect("a capture");
    for hello in hello_segments(&segments) {
        assert!(
            hello.len() >= 3 && hello[0].payload <= 116,
            "{} segments, the first of {}",
            hello.len(),
            hello[0].payload
        );
    }
    setup.finish();
}
