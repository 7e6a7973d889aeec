//! `bind = "syn"`: client and server agree on options with each other, whatever the engine could promise.

use rig::capture::{Capture, Segment, Tap};
use rig::engine::{Choice, EngineOptions, Service};
use rig::{Place, Rig, RigOptions, servers};

use crate::setup::{LIMIT, Setup, family_option};

/// What a SYN or SYN-ACK offers.
type Offer = (Option<u16>, Option<u8>, bool, bool);

fn offer(segment: &Segment) -> Offer {
    (
        segment.mss,
        segment.window_scale,
        segment.sack_permitted,
        segment.timestamps.is_some(),
    )
}

/// Makes the kernel of a place speak TCP in its own way.
fn tune(rig: &Rig, place: Place, settings: &[&str]) {
    for setting in settings {
        rig.run(place, "sysctl", &["-w", setting], LIMIT)
            .expect("a setting of TCP");
    }
}

/// Fetches a file at each of the engine's addresses while both cables are watched; returns what the SYNs and the SYN-ACKs
/// offered at the clients' cable and at the servers'.
fn fetch(setup: &Setup) -> [Vec<Offer>; 4] {
    let captures = [Tap::Clients, Tap::Servers].map(|tap| Capture::start(&setup.rig, tap).expect("tcpdump"));
    for address in setup.rig.engine_addresses() {
        let url = format!("http://{}/", std::net::SocketAddr::new(address, servers::HTTP));
        let arguments = [family_option(address), "-sS", "--fail", "--max-time", "50", &url];
        let answer = setup
            .rig
            .run(Place::Clients, "curl", &arguments, LIMIT)
            .expect("curl is answered");
        assert_eq!(servers::named_in(&answer.text()), Some(1));
    }
    let [clients, servers] = captures.map(|capture| capture.finish().expect("a capture"));
    let of = |segments: &[Segment], is: fn(&Segment) -> bool| segments.iter().filter(|s| is(s)).map(offer).collect();
    [
        of(&clients, Segment::opens),
        of(&servers, Segment::opens),
        of(&clients, Segment::answers_open),
        of(&servers, Segment::answers_open),
    ]
}

#[test]
fn the_servers_see_the_clients_own_options() {
    let service = Service {
        name: "http",
        port: servers::HTTP,
        choice: Choice::AtSyn(1),
    };
    let options = EngineOptions {
        services: vec![service],
        ..EngineOptions::default()
    };
    let start = |rig: &Rig| vec![servers::start_nginx(rig, 1).expect("nginx starts")];
    let tools = ["curl", "nginx", "tcpdump", "sysctl"];
    let Some(setup) = Setup::new(RigOptions::default(), &options, &tools, start) else {
        return;
    };
    // The engine's own SYNs, by which it asks servers, are over then.
    let setup = setup.knowing(&["http4-2", "http6-2"]);
    // Shifts that no engine would promise by chance: of 8 MiB and of 512 KiB.
    tune(&setup.rig, Place::Clients, &["net.ipv4.tcp_rmem=4096 131072 8388608"]);
    tune(&setup.rig, Place::Servers, &["net.ipv4.tcp_rmem=4096 131072 524288"]);
    let [asked, passed, answered, answers] = fetch(&setup);
    assert_eq!(asked.len(), 2, "one connection over each version of IP");
    assert_eq!(passed, asked);
    assert_eq!(answered, answers);
    assert_ne!(asked[0].1, answers[0].1, "each side has its own shift");
    assert!(asked.iter().all(|offer| offer.2 && offer.3));

    // The same client without timestamps and SACK, which no server hears of then.
    let poorer = ["net.ipv4.tcp_timestamps=0", "net.ipv4.tcp_sack=0"];
    tune(&setup.rig, Place::Clients, &poorer);
    let [asked, passed, answered, answers] = fetch(&setup);
    assert!(asked.iter().chain(&answers).all(|offer| !offer.2 && !offer.3));
    assert_eq!((passed, answered), (asked, answers));
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), 4);
}
