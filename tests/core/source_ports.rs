//! What source ports take of memory, counted in bytes; and those on which somebody begins to listen.

use crate::harness::{Bench, CONFIG, Client, Server, close, only};
use crate::reload;
use e2d2::wire::tcp::TcpFlags;
use proxyengine::config::Config;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn with_servers(count: usize) -> String {
    let servers: String = (0..count)
        .map(|n| {
            format!(
                "{{ name = \"n{n}\", address = \"10.1.{}.{}:8080\" }},\n",
                1 + n / 250,
                1 + n % 250
            )
        })
        .collect();
    let s0 = CONFIG.find("  { name = \"s0\"").expect("servers");
    let end = s0 + CONFIG[s0..].find("]\n").expect("their end");
    let text = format!("{}{servers}{}", &CONFIG[..s0], &CONFIG[end..]);
    text.replace("10.1.0.9/24", "10.1.0.9/16")
        .replace("max_connections = 64", "max_connections = 4096")
}

fn bytes_of_ports(bench: &Bench) -> u64 {
    let parts = bench.proxy.memory_by_structure();
    let bytes = parts.iter().find(|(name, _)| *name == "ports").map(|(_, bytes)| *bytes);
    bytes.expect("the part of the ports") as u64
}

#[test]
fn a_thousand_servers_take_32_mib_of_one_core_at_most() {
    let text = with_servers(1_000);
    let config = Config::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"));
    let expected = config.port_memory();
    // What they took before: 0.77 MB each.
    assert!(
        expected.at_start < 4 * MIB && expected.at_most > 600 * MIB,
        "{expected:?}"
    );
    let mut bench = Bench::for_pools(&text);
    let (at_start, all_at_start) = (bytes_of_ports(&bench), bench.proxy.memory());
    assert!(at_start <= expected.at_start + MIB / 16, "{at_start} of {expected:?}");
    // Five connections to each, each over before the next.
    for n in 0..5_000 {
        let mut client = Client::new(1024 + n);
        client.connect(&mut bench);
        let mut server = Server::from_syn(&only(client.send(&mut bench, b"hello")));
        server.accept(&mut bench);
        server.ack = server.ack.wrapping_add(5);
        close(&mut bench, &mut client, &mut server);
        bench.now += Duration::from_millis(10);
        bench.wait(Duration::ZERO);
    }
    let used = bytes_of_ports(&bench);
    assert!(used > at_start && used <= 32 * MIB, "{used}");
    assert!(used / 1_003 <= 16 << 10, "{} for each server", used / 1_003);
    assert_eq!(bench.proxy.memory() - all_at_start, bench.proxy.memory_grown());
    bench.assert_all_returned();
}

#[test]
fn a_port_on_which_somebody_begins_to_listen_is_no_source_any_more_and_its_connection_goes_on() {
    let before =
        reload::with_servers(&[(0, 1)]).replacen("name = \"all\"", "name = \"all\"\nlocal_ports = \"8080-8082\"", 1);
    let more = "[[listener]]\nname = \"more\"\naddresses = [\"10.1.0.9:8080-8081\"]\ndefault = \"all\"\n";
    let mut bench = reload::bench(&before);
    let (mut first, mut of_first) = reload::connect(&mut bench, 40_000);
    let (mut second, mut of_second) = reload::connect(&mut bench, 40_001);
    let port = |server: &Server| server.proxy.address.port();
    assert_eq!((port(&of_first), port(&of_second)), (8080, 8081));

    bench.reload(&format!("{before}{more}"), reload::rules);
    reload::talk(&mut bench, &mut first, &mut of_first);
    let (mut third, mut of_third) = reload::connect(&mut bench, 40_002);
    assert_eq!(port(&of_third), 8082);
    close(&mut bench, &mut first, &mut of_first);
    bench.wait(Duration::from_secs(61));
    let has_no_port = |bench: &mut Bench<_>, client: u16| {
        let mut client = Client::new(client);
        client.connect(bench);
        let answer = only(client.send(bench, b"GET / HTTP/1.1\r\n\r\n"));
        assert!(
            answer.to == client.me && answer.flags.contains(TcpFlags::RST),
            "{answer:?}"
        );
    };
    has_no_port(&mut bench, 40_003);

    // What it has given up is not handed out either: its clients may still be there.
    bench.reload(&before, reload::rules);
    has_no_port(&mut bench, 40_004);
    reload::talk(&mut bench, &mut second, &mut of_second);
    close(&mut bench, &mut second, &mut of_second);
    close(&mut bench, &mut third, &mut of_third);
    bench.assert_all_returned();
}
