//! What the core counts by listener, pool and server: against what has happened.

use std::time::Duration;

use e2d2::wire::tcp::TcpFlags;

use crate::harness::{Bench, CONFIG, Client, Server, close, nothing, only, spliced};
use crate::{reload, syn};
use splice::tally::{Distribution, Histogram, PoolTally, Tally};

const CONNECTIONS: u16 = 60;

fn of<'a>(counted: impl IntoIterator<Item = Histogram<'a>>) -> Distribution {
    let mut all = Distribution::default();
    counted.into_iter().for_each(|histogram| all.add(histogram));
    all
}

/// What is counted of the first pool, and of none.
fn first_and_none(tally: &Tally) -> [&PoolTally; 2] {
    [tally.pool(0), tally.no_pool()].map(|counted| counted.expect("counted"))
}

/// Numbers and sum are exact, what is said of their order is a ninth wrong at most.
fn assert_told(name: &str, told: &Distribution, exact: &mut [u64]) {
    exact.sort_unstable();
    assert_eq!(
        (told.count(), told.sum()),
        (exact.len() as u64, exact.iter().sum()),
        "{name}"
    );
    for part in [0.1, 0.5, 0.9, 0.99] {
        let exact = exact[(exact.len() as f64 * part).ceil() as usize - 1];
        let said = told.quantile(part).expect("some");
        assert!(said.abs_diff(exact) * 9 <= exact, "{name} {part}: {said} for {exact}");
    }
}

#[test]
fn every_connection_is_counted_with_its_times() {
    let mut bench = Bench::for_pools(CONFIG);
    let [mut choices, mut connects, mut first_bytes, mut durations] = <[Vec<u64>; 4]>::default();
    for n in 0..u64::from(CONNECTIONS) {
        // Below the 50 ms from which a call may be overdue, and the 200 ms from which anything is sent again.
        let (choice, connect, first_byte, rest) = (5 + n * 2_711, 120 + n * n * 11, 17 + n * 700, 1_000 * n * n);
        let wait = |bench: &mut Bench, micros| nothing(bench.wait(Duration::from_micros(micros)));
        let mut client = Client::new(40_000 + n as u16);
        client.connect(&mut bench);
        wait(&mut bench, choice);
        let mut server = Server::from_syn(&only(client.send(&mut bench, b"0 hello")));
        wait(&mut bench, connect);
        server.accept(&mut bench);
        server.ack = server.ack.wrapping_add(7);
        wait(&mut bench, first_byte);
        only(server.send(&mut bench, b"answer"));
        client.ack = client.ack.wrapping_add(6);
        only(bench.receive(&client.segment(TcpFlags::ACK, b"")));
        wait(&mut bench, rest);
        only(server.send(&mut bench, b"more"));
        client.ack = client.ack.wrapping_add(4);
        close(&mut bench, &mut client, &mut server);
        choices.push(choice);
        connects.push(connect);
        first_bytes.push(first_byte);
        durations.push(choice + connect + first_byte + rest);
    }

    let tally = bench.proxy.tally();
    let (listener, pool) = (tally.listener(0).expect("a listener"), tally.pool(0).expect("a pool"));
    assert_told("choice", &of([pool.choice()]), &mut choices);
    assert_told("connect", &of([pool.connect()]), &mut connects);
    assert_told("first byte", &of([pool.first_byte()]), &mut first_bytes);
    assert_told("duration", &of([pool.duration()]), &mut durations);
    let bytes = of([pool.bytes()]);
    let all = u64::from(CONNECTIONS);
    assert_eq!((bytes.count(), bytes.sum()), (all, 17 * all));
    assert_eq!(
        [
            listener.connections.get(),
            listener.ended.get(),
            pool.chosen.get(),
            listener.bytes_to_server.get(),
            listener.bytes_to_client.get(),
        ],
        [all, all, all, 7 * all, 10 * all]
    );
    // Servers have taken turns, and what is told of them is what is told of their pool.
    let servers = [0, 1, 2].map(|server| tally.server(server).expect("a server"));
    assert!(servers.iter().all(|server| of([server.connect()]).count() == all / 3));
    assert_eq!(of(servers.iter().map(|server| server.connect())), of([pool.connect()]));
    assert_eq!(
        of(servers.iter().map(|server| server.first_byte())),
        of([pool.first_byte()])
    );
    let none = tally.no_pool().expect("what is of no pool");
    assert_eq!(
        of([
            none.choice(),
            none.connect(),
            none.first_byte(),
            none.duration(),
            none.bytes()
        ])
        .count(),
        0
    );
    assert_eq!(tally.listener(1).expect("a listener").connections.get(), 0);
    bench.assert_all_returned();
}

/// Of a call whose SYN was repeated nobody knows which SYN was answered, and a client that leaves has chosen nobody.
#[test]
fn what_nobody_knows_is_not_counted() {
    let mut bench = Bench::for_pools(CONFIG);
    let mut client = Client::new(40_000);
    client.connect(&mut bench);
    let syn = only(client.send(&mut bench, b"0 hello"));
    let repeated = bench.wait(Duration::from_millis(1_100));
    assert!(!repeated.is_empty(), "the SYN is sent again");
    let last = repeated.last().unwrap_or(&syn);
    Server::from_syn(last).accept(&mut bench);
    let mut other = Client::new(40_001);
    other.connect(&mut bench);
    only(bench.receive(&other.segment(TcpFlags::FIN, b"")));
    let tally = bench.proxy.tally();
    let listener = tally.listener(0).expect("a listener");
    let [pool, none] = first_and_none(&tally);
    assert_eq!((listener.connections.get(), listener.ended.get()), (2, 0));
    assert_eq!([pool, none].map(|pool| of([pool.choice()]).count()), [1, 0]);
    assert_eq!([pool, none].map(|pool| of([pool.first_byte()]).count()), [0, 0]);
    bench.finish();
    assert_eq!(listener.ended.get(), 2);
    assert_eq!([pool, none].map(|pool| of([pool.duration()]).count()), [1, 1]);
    assert_eq!([pool, none].map(|pool| of([pool.bytes()]).count()), [1, 1]);
}

/// The pool of a forwarded SYN, in each phase in which the connection can end.
#[test]
fn a_forwarded_syn_is_counted_for_its_pool_wherever_it_ends() {
    for phase in 0..3 {
        let mut bench = syn::bench();
        match phase {
            0 => drop(syn::forwarded(&mut bench)),
            1 => drop(syn::answered(&mut bench)),
            _ => drop(syn::established(&mut bench)),
        }
        bench.finish();
        let tally = bench.proxy.tally();
        let [pool, none] = first_and_none(&tally);
        let counted = [pool, none].map(|pool| of([pool.duration()]).count());
        assert_eq!((pool.chosen.get(), counted), (1, [1, 0]), "phase {phase}");
    }
}

/// A pool that the file has no longer is counted as long as a connection is of it, and nothing of that for the pool that gets its number.
#[test]
fn a_connection_is_counted_for_its_pool_after_the_file_has_lost_it() {
    let before = reload::with_servers(&[(0, 1)]);
    let renamed = |name: &str| {
        before
            .replace("pool = \"all\"", &format!("pool = \"{name}\""))
            .replacen("name = \"all\"", &format!("name = \"{name}\""), 1)
    };
    let mut bench = reload::bench(&before);
    let (mut client, mut server) = reload::connect(&mut bench, 40_000);
    bench.reload(&renamed("next"), reload::rules);
    bench.forget_past(reload::rules);
    bench.reload(&renamed("third"), reload::rules);
    close(&mut bench, &mut client, &mut server);
    let tally = bench.proxy.tally();
    let of_pool = |number: usize| tally.pool(number).map_or(0, |pool| of([pool.duration()]).count());
    let all = bench.config.pools().iter().enumerate();
    let counted = all.map(|(number, pool)| (pool.name.as_str(), of_pool(number)));
    let counted: Vec<_> = counted.filter(|(_, count)| *count > 0).collect();
    assert_eq!(counted, [("all", 1)]);
}

#[test]
fn the_servers_that_are_timed_change_with_a_reload() {
    let timed = |names: &str| format!("{CONFIG}\n[control]\ntimed_servers = [{names}]\n");
    let mut bench = Bench::with_config(&timed("\"s1\", \"s2\""));
    let calls = |bench: &Bench, server: usize| {
        let tally = bench.proxy.tally();
        tally.server(server).map(|server| of([server.connect()]).count())
    };
    spliced(&mut bench, 40_000);
    let mut client = Client::new(40_001);
    client.connect(&mut bench);
    Server::from_syn(&only(client.send(&mut bench, b"1 hello"))).accept(&mut bench);
    assert_eq!([0, 1, 2].map(|server| calls(&bench, server)), [None, Some(1), Some(0)]);
    bench.reload(&timed("\"s0\", \"s1\""), |_| None);
    spliced(&mut bench, 40_002);
    assert_eq!([0, 1, 2].map(|server| calls(&bench, server)), [Some(1), Some(1), None]);
    bench.finish();
    bench.assert_all_returned();
}
