//! Flows that are refused because the flow table has no place near their hash: by somebody who knows its keys.

use crate::harness::{Bench, CONFIG, Client, PROXY_MAC, Server, TABLE_SECRET, bound_with_syn, close, nothing, only};
use e2d2::wire::tcp::TcpFlags;
use netfcts::leg::mapped;
use netfcts::{Cause, FourTuple, Side};
use splice::drop_reason::DropReason;
use splice::table::{FlowTable, REACH};
use std::net::SocketAddr;
use testkit::{Segment, Station};

/// Flows that fill all lines within reach of one.
const CROWD: usize = REACH * 10;

const CONNECTIONS: usize = 1_000;

fn config(text: &str) -> String {
    text.replace("max_connections = 64", &format!("max_connections = {CONNECTIONS}"))
}

/// A table as the core has: for two flows of each connection, and of each at rest.
fn table(connections: usize) -> FlowTable {
    FlowTable::new(2 * (connections + (connections / 2).max(1_024)), TABLE_SECRET)
}

/// The line that a flow is at home in.
fn home(table: &FlowTable, remote: SocketAddr, local: SocketAddr) -> u64 {
    let key = FourTuple {
        remote: mapped(remote.ip()),
        local: mapped(local.ip()),
        remote_port: remote.port(),
        local_port: local.port(),
    };
    ((table.hash(&key) >> 32) * (table.memory() as u64 / 64)) >> 32
}

/// Clients whose flows are at home in this line.
fn clients_at(line: u64, connections: usize) -> impl Iterator<Item = Client> {
    let table = table(connections);
    let listener: SocketAddr = "10.0.0.9:80".parse().expect("an address");
    (10..200_u8)
        .flat_map(|host| (1_024..u16::MAX).map(move |port| SocketAddr::from(([10, 0, 0, host], port))))
        .filter(move |&client| home(&table, client, listener) == line)
        .map(|client| Client {
            me: Station::new(1, &client.to_string()),
            ..Client::new(1)
        })
}

/// Fills all lines within reach of `line` by clients that connect and say nothing, and returns them and the next ones.
fn crowd(bench: &mut Bench, line: u64) -> (Vec<Client>, impl Iterator<Item = Client> + use<>) {
    let mut clients = clients_at(line, CONNECTIONS);
    let mut crowd: Vec<Client> = clients.by_ref().take(CROWD).collect();
    crowd.iter_mut().for_each(|client| client.connect(bench));
    assert_eq!(crowd.len(), CROWD);
    (crowd, clients)
}

fn leave(bench: &mut Bench, client: &Client) {
    nothing(bench.receive(&Segment {
        flags: TcpFlags::RST,
        ..client.segment(TcpFlags::ACK, b"")
    }));
}

/// A source port that the core has called server 0 from.
fn source_port(bench: &mut Bench) -> (SocketAddr, SocketAddr) {
    let mut client = Client::new(40_000);
    client.connect(bench);
    let syn = only(client.send(bench, b"0 hello"));
    let mut server = Server::from_syn(&syn);
    server.accept(bench);
    server.ack = server.ack.wrapping_add(7);
    close(bench, &mut client, &mut server);
    // Until nothing of it rests in the table.
    bench.assert_all_returned();
    (syn.to.address, syn.from.address)
}

#[test]
fn a_client_without_a_place_is_refused_until_there_is_one() {
    let mut bench = Bench::with_config(&config(CONFIG));
    let (crowd, mut next) = crowd(&mut bench, 7);
    assert_eq!(bench.proxy.usage().connections, CROWD);
    let mut late = next.next().expect("one more");
    late.connect(&mut bench);
    assert_eq!(bench.dropped(DropReason::TableCrowded), 1);
    let hello = late.segment(TcpFlags::PSH, b"0 hello");
    nothing(bench.receive(&hello));
    assert_eq!(bench.dropped(DropReason::TableCrowded), 2);
    assert_eq!(bench.proxy.usage().connections, CROWD);
    // Others are served, those at home among the crowd, too.
    let mut other = clients_at(8, CONNECTIONS).next().expect("a client");
    other.connect(&mut bench);
    assert_eq!(only(other.send(&mut bench, b"0 hello")).flags, TcpFlags::SYN);
    // What it repeats is taken when there is room: its cookie is not used up.
    leave(&mut bench, &crowd[17]);
    assert_eq!(only(bench.receive(&hello)).flags, TcpFlags::SYN);
    assert_eq!(bench.dropped(DropReason::TableCrowded), 2);
}

#[test]
fn a_server_is_called_from_another_port_if_the_flow_of_one_has_no_place() {
    let mut bench = Bench::with_config(&config(CONFIG));
    let (server, mut source) = source_port(&mut bench);
    // Ports that were never used are taken in turn.
    source.set_port(source.port() + 1);
    let (mut crowd, _) = crowd(&mut bench, home(&table(CONNECTIONS), server, source));
    let syn = only(crowd[0].send(&mut bench, b"0 hello"));
    assert_eq!((syn.flags, syn.to.address), (TcpFlags::SYN, server));
    assert_eq!(syn.from.address.port(), source.port() + 1);
    assert_eq!(bench.dropped(DropReason::TableCrowded), 1);
    let mut server = Server::from_syn(&syn);
    let (_, held) = server.accept(&mut bench);
    assert_eq!(only(held).payload, b"0 hello");
    server.ack = server.ack.wrapping_add(7);
    close(&mut bench, &mut crowd[0], &mut server);
    crowd[1..].iter().for_each(|client| leave(&mut bench, client));
    bench.assert_all_returned();
    // The first record is of the connection that showed the source port.
    let record = bench.records()[1];
    assert_eq!(
        (record.servers_tried(), record.cause(Side::Client)),
        (1, Cause::ActiveClose)
    );
}

#[test]
fn a_client_is_reset_if_no_source_of_its_server_has_a_place() {
    let text = config(CONFIG).replace("name = \"all\"\n", "name = \"all\"\nlocal_ports = \"5000\"\n");
    let mut bench = Bench::with_config(&text);
    let (server, source) = source_port(&mut bench);
    assert_eq!(source.port(), 5_000);
    let (mut crowd, _) = crowd(&mut bench, home(&table(CONNECTIONS), server, source));
    let reset = only(crowd[0].send(&mut bench, b"0 hello"));
    assert_eq!((reset.to, reset.seq), (crowd[0].me, crowd[0].ack));
    assert!(reset.flags.contains(TcpFlags::RST));
    assert_eq!(bench.dropped(DropReason::TableCrowded), 4);
    assert_eq!(
        bench.records().last().map(|record| record.cause(Side::Client)),
        Some(Cause::NoPort)
    );
    // The port is free again, and its flow has the place of one that has left.
    let syn = only(crowd[1].send(&mut bench, b"0 hello"));
    assert_eq!((syn.flags, syn.from.address), (TcpFlags::SYN, source));
    assert_eq!(syn.from.mac.0[5], PROXY_MAC[1]);
}

#[test]
fn a_syn_without_a_place_is_not_passed_on() {
    const MANY: usize = 4_000;
    let text = bound_with_syn("").replace("max_connections = 64", &format!("max_connections = {MANY}"));
    let mut bench = Bench::for_pools(&text);
    let mut before = bench.proxy.usage();
    for client in clients_at(700, MANY) {
        let sent = bench.receive(&client.syn());
        if bench.dropped(DropReason::TableCrowded) > 0 {
            nothing(sent);
            break;
        }
        only(sent);
        before = bench.proxy.usage();
    }
    assert_eq!(bench.dropped(DropReason::TableCrowded), 1);
    assert_eq!(bench.proxy.usage(), before);
    // Flows of servers may stand there as well.
    assert!(
        (CROWD * 3 / 4..=CROWD).contains(&before.connections),
        "{}",
        before.connections
    );
}
