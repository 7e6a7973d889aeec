//! What a core shows and ends when it is asked to, and how little of it in a round.

use crate::graph_bench::GraphBench;
use crate::harness::{Bench, CONFIG, Client, Server, only, spliced};
use e2d2::time::Instant;
use e2d2::wire::tcp::TcpFlags;
use proxyengine::commands::{Closing, FOR_SHOWN, PACE, Purpose, Visit, Visited};
use proxyengine::config::ServerId;
use splice::standby::Service;
use splice::visit::{ConnectionFilter, ConnectionView, ENDED_PER_ROUND, LOOKED_AT_PER_ROUND};
use std::time::Duration;
use testkit::Station;

fn with_capacity(connections: usize) -> String {
    CONFIG.replace("max_connections = 64", &format!("max_connections = {connections}"))
}

fn shown(bench: &Bench, filter: ConnectionFilter) -> Vec<ConnectionView> {
    let mut views = Vec::new();
    let mut places = 0..bench.proxy.places_used();
    while !places.is_empty() {
        bench.proxy.look_at(bench.now, &mut places, &filter, |found| {
            views.push(bench.proxy.view(found));
            true
        });
    }
    views
}

#[test]
fn connections_are_found_by_what_is_known_of_them() {
    let mut bench = Bench::new();
    spliced(&mut bench, 1024);
    bench.wait(Duration::from_secs(2));
    let mut silent = Client::new(1025);
    silent.connect(&mut bench);
    let mut waiting = Client {
        me: Station::new(1, "10.0.0.77:1026"),
        ..Client::new(1026)
    };
    waiting.connect(&mut bench);
    only(waiting.send(&mut bench, b"1 hello"));
    bench.wait(Duration::from_millis(1500));
    let ports = |filter| -> Vec<u16> {
        let views = shown(&bench, filter);
        views.iter().map(|view| view.connection.ends.client_port).collect()
    };
    let any = ConnectionFilter::default();
    assert_eq!(ports(any), [1024, 1025, 1026]);
    let of = |state| {
        ports(ConnectionFilter {
            state: Some(state),
            ..any
        })
    };
    assert_eq!((of("spliced"), of("await_payload")), (vec![1024], vec![1025]));
    assert_eq!((of("server_syn_sent"), of("closing")), (vec![1026], vec![]));
    let to = |server| {
        ports(ConnectionFilter {
            server: Some(ServerId(server)),
            ..any
        })
    };
    assert_eq!((to(0), to(1), to(2)), (vec![1024], vec![1026], vec![]));
    let clients = |prefix| {
        let client = Some(prefix);
        ports(ConnectionFilter { client, ..any })
    };
    assert_eq!(clients((0xffff_0a00_004d, u128::MAX)), [1026]);
    // IPv6 as a whole has no IPv4 client, in whatever form that is kept.
    assert!(clients((0, 0)).is_empty());
    assert_eq!(clients((0xffff_0000_0000, u128::MAX << 32)), [1024, 1025, 1026]);
    let old = |seconds| {
        let older_than = Some(Duration::from_secs(seconds));
        ports(ConnectionFilter { older_than, ..any })
    };
    assert_eq!((old(1), old(3), old(4)), (vec![1024, 1025, 1026], vec![1024], vec![]));
    // The first has sent a request that its server has not answered, either.
    assert_eq!(ports(ConnectionFilter { is_slow: true, ..any }), [1024, 1026]);
    let views = shown(&bench, any);
    for view in &views {
        let mark = Some(view.mark());
        assert_eq!(
            ports(ConnectionFilter { mark, ..any }),
            [view.connection.ends.client_port]
        );
    }
    assert_eq!(
        (views[0].silent_for(), views[1].silent_for()),
        (Some(Duration::from_millis(3500)), None)
    );
    bench.finish();
    bench.assert_all_returned();
}

/// A list's `--kill` is to end what a rule would refuse: rules ask who the header has named.
#[test]
fn behind_a_proxy_the_client_is_whom_the_header_has_named() {
    let accept = "name = \"web\"\nproxy_protocol = { accept = \"required\", from = [\"10.0.0.0/24\"] }";
    let mut bench = Bench::with_config(&CONFIG.replacen("name = \"web\"", accept, 1));
    for (port, name) in [(1024, "192.0.2.7"), (1025, "192.0.2.8")] {
        let mut proxy = Client::new(port);
        proxy.connect(&mut bench);
        let text = format!("PROXY TCP4 {name} 10.0.0.9 5000 80\r\n1 ");
        let syn = only(proxy.send(&mut bench, text.as_bytes()));
        if port == 1024 {
            // It is known to the record only when the server is connected.
            Server::from_syn(&syn).accept(&mut bench);
        }
    }
    let of = |prefix: u128| -> Vec<u16> {
        let client = Some((prefix, u128::MAX));
        let views = shown(
            &bench,
            ConnectionFilter {
                client,
                ..ConnectionFilter::default()
            },
        );
        views.iter().map(|view| view.connection.ends.client_port).collect()
    };
    assert_eq!((of(0xffff_c000_0207), of(0xffff_c000_0208)), (vec![1024], vec![1025]));
    assert!(of(0xffff_0a00_0001).is_empty(), "the proxy is nobody's client");
}

#[test]
fn a_round_looks_at_few_places_and_ends_few() {
    let mut bench = Bench::with_config(&with_capacity(1000));
    for port in 0..300 {
        spliced(&mut bench, 1024 + port);
    }
    assert_eq!(bench.proxy.places_used(), 300);
    let mut places = 0..300;
    let (mut seen, any) = (0, ConnectionFilter::default());
    bench.proxy.look_at(bench.now, &mut places, &any, |_| {
        seen += 1;
        true
    });
    assert_eq!((seen, places.start), (LOOKED_AT_PER_ROUND, LOOKED_AT_PER_ROUND as u32));
    // Who wants no more is not shown more.
    bench.proxy.look_at(bench.now, &mut places, &any, |_| false);
    assert_eq!(places.start, LOOKED_AT_PER_ROUND as u32 + 1);
    let mut places = 0..300;
    let (ended, told) = bench.end_wanted(&mut places, &any);
    assert_eq!(
        (ended, told.len(), places.start),
        (ENDED_PER_ROUND, 2 * ENDED_PER_ROUND as usize, ENDED_PER_ROUND)
    );
    assert!(told.iter().all(|segment| segment.flags.contains(TcpFlags::RST)));
    let none = ConnectionFilter {
        server: Some(ServerId(2)),
        ..any
    };
    let (ended, told) = bench.end_wanted(&mut places, &none);
    assert_eq!((ended, told.len()), (0, 0));
    assert_eq!(places.start, ENDED_PER_ROUND + LOOKED_AT_PER_ROUND as u32);
    assert_eq!(bench.proxy.usage().connections, 300 - ENDED_PER_ROUND as usize);
    bench.finish();
    bench.assert_all_returned();
}

/// All connections, to be shown.
fn all() -> Visit {
    Visit {
        purpose: Purpose::Show,
        places: 0..u32::MAX,
        filter: ConnectionFilter::default(),
        most: u32::MAX,
    }
}

/// A core with so many connections.
fn core_with(connections: u16) -> GraphBench {
    let mut bench = GraphBench::with_config(&with_capacity(1000));
    for port in 0..connections {
        spliced(&mut bench, 1024 + port);
    }
    bench
}

/// The longest time from one part of a visit to the next.
fn pace(purpose: Purpose) -> Duration {
    match purpose {
        Purpose::Show => PACE + FOR_SHOWN * LOOKED_AT_PER_ROUND as u32,
        Purpose::End | Purpose::Capture => PACE,
    }
}

/// Runs the graph until the core has done what it is asked: what it has shown, and in how many rounds.
fn visit(bench: &mut GraphBench, visit: Visit) -> (Visited, Vec<ConnectionView>, usize) {
    let GraphBench { core, now, .. } = bench;
    let pace = pace(visit.purpose);
    let (commander, task) = (&mut core.commander, &mut core.task);
    std::thread::scope(|scope| {
        let asks = scope.spawn(move || {
            let mut views = Vec::new();
            let visited = commander.visit(visit, Duration::from_secs(20), |view| views.push(view));
            (visited.expect("the core comes round"), views)
        });
        let (mut rounds, mut works) = (0, true);
        while !asks.is_finished() {
            // No time goes by while the core waits for who asks.
            if works {
                *now += pace;
            }
            works = task.run(*now).count() > 0;
            rounds += usize::from(works);
            // The cables are of no interest here, but must not fill up.
            for far in &mut core.far {
                while drained(far) {}
            }
            std::thread::yield_now();
        }
        let (visited, views) = asks.join().expect("asked");
        (visited, views, rounds)
    })
}

fn drained(far: &mut impl e2d2::port::Port<Buffer = e2d2::buffer::HeapBuffer>) -> bool {
    let mut taken = arrayvec::ArrayVec::<_, { e2d2::BURST }>::new();
    far.receive(&mut taken);
    !taken.is_empty()
}

#[test]
fn a_core_does_a_part_of_what_it_is_asked_in_each_round() {
    let mut bench = core_with(300);
    let (visited, views, rounds) = visit(&mut bench, all());
    assert_eq!((visited, views.len()), (Visited { next: None, count: 300 }, 300));
    assert!(rounds >= 300_usize.div_ceil(LOOKED_AT_PER_ROUND), "{rounds}");
    let first = Visit { most: 10, ..all() };
    let (visited, views, _) = visit(&mut bench, first);
    let last = views.last().expect("ten").slot;
    assert_eq!(
        (visited, views.len(), last),
        (
            Visited {
                next: Some(10),
                count: 10
            },
            10,
            9
        )
    );
    let some = Visit {
        places: 10..20,
        ..all()
    };
    let (visited, views, _) = visit(&mut bench, some);
    assert_eq!(
        (visited, views[0].slot),
        (
            Visited {
                next: Some(20),
                count: 10
            },
            10
        )
    );
    bench.assert_all_returned("shown");
}

#[test]
fn connections_that_are_named_are_ended_a_few_in_a_round() {
    let mut bench = core_with(300);
    let (_, views, _) = visit(
        &mut bench,
        Visit {
            places: 17..18,
            ..all()
        },
    );
    let one = Visit {
        purpose: Purpose::End,
        places: 17..18,
        filter: ConnectionFilter {
            mark: Some(views[0].mark()),
            ..ConnectionFilter::default()
        },
        most: u32::MAX,
    };
    let (visited, ..) = visit(&mut bench, one.clone());
    assert_eq!(
        visited,
        Visited {
            next: Some(18),
            count: 1
        }
    );
    // Nobody is ended in its place.
    spliced(&mut bench, 5000);
    let (visited, ..) = visit(&mut bench, one);
    assert_eq!(visited.count, 0);
    let of_server = Visit {
        purpose: Purpose::End,
        filter: ConnectionFilter {
            server: Some(ServerId(0)),
            ..ConnectionFilter::default()
        },
        ..all()
    };
    let (visited, _, rounds) = visit(&mut bench, of_server);
    assert_eq!((visited.count, visited.next), (300, None));
    assert!(rounds >= 300_usize.div_ceil(ENDED_PER_ROUND as usize), "{rounds}");
    assert_eq!(bench.core.handle.look(|proxy| proxy.usage().connections), 0);
    bench.assert_all_returned("ended");
}

/// Asks again and again, from where the last answer ended: how many connections are shown or ended, by so many answers.
fn visit_all(bench: &mut GraphBench, purpose: Purpose, filter: ConnectionFilter) -> (u32, usize) {
    let (mut from, mut count) = (0, 0);
    for answers in 1.. {
        let places = from..u32::MAX;
        let (visited, _, rounds) = visit(
            bench,
            Visit {
                purpose,
                places,
                filter,
                most: u32::MAX,
            },
        );
        assert!(pace(purpose) * (rounds as u32) < Duration::from_millis(100), "{rounds}");
        count += visited.count;
        match visited.next {
            Some(next) => from = next,
            None => return (count, answers),
        }
    }
    unreachable!("a core has no end of places")
}

/// Who asks waits for 200 ms: an answer that takes half of it is there in time.
#[test]
fn with_many_connections_an_answer_comes_in_time_and_says_where_to_go_on() {
    const CONNECTIONS: u16 = 40_000;
    let patient = with_capacity(CONNECTIONS.into()) + "[timeouts]\nselect = \"10m\"\n";
    let mut bench = GraphBench::with_config(&patient);
    (0..CONNECTIONS).for_each(|port| Client::new(1024 + port).connect(&mut bench));
    let clients = |prefix| ConnectionFilter {
        client: Some(prefix),
        ..ConnectionFilter::default()
    };
    let (nobody, all) = (clients((7, u128::MAX)), clients((0xffff_0a00_0000, u128::MAX << 8)));
    for purpose in [Purpose::Show, Purpose::End] {
        assert_eq!(visit_all(&mut bench, purpose, nobody), (0, 5), "{purpose:?}");
    }
    // Some places are kept from clients that have sent nothing.
    let open = bench.core.handle.look(|proxy| proxy.usage().connections);
    let (ended, answers) = visit_all(&mut bench, Purpose::End, all);
    assert_eq!(
        (ended as usize, answers),
        (open, open.div_ceil(128 * ENDED_PER_ROUND as usize))
    );
    assert_eq!(bench.core.handle.look(|proxy| proxy.usage().connections), 0);
}

#[test]
fn who_asks_a_core_that_does_not_come_round_is_told() {
    let mut bench = GraphBench::new();
    let patience = Duration::from_millis(20);
    for _ in 0..10 {
        let asked = bench.core.commander.visit(all(), patience, |_| {});
        assert_eq!(asked, Err(proxyengine::commands::Unanswered::Silent));
    }
    // What nobody waits for any more is done and thrown away.
    for _ in 0..10 {
        bench.now += pace(Purpose::Show);
        bench.exchange([]);
    }
    let (visited, views, _) = visit(&mut bench, all());
    assert_eq!((visited, views.len()), (Visited { next: None, count: 0 }, 0));
    bench.assert_all_returned("silent");
}

/// Runs the graph for `time` while somebody asks for a closing: how many connections were ended in each second.
fn closed(bench: &mut GraphBench, closing: Closing, time: Duration) -> Vec<usize> {
    let pace = Duration::from_millis(1);
    let GraphBench { core, now, .. } = bench;
    let (commander, task, handle) = (&mut core.commander, &mut core.task, &core.handle);
    let far = &mut core.far;
    let mut run = |now: &mut e2d2::time::Instant, pace| {
        *now += pace;
        _ = task.run(*now);
        far.iter_mut().for_each(|far| while drained(far) {});
        handle.look(|proxy| proxy.usage().connections)
    };
    let mut left = std::thread::scope(|scope| {
        let asks = scope.spawn(move || commander.close(closing, Duration::from_secs(20)));
        // No time goes by until the asking thread has had its turn.
        let mut left = run(now, pace);
        while !asks.is_finished() {
            left = run(now, Duration::ZERO);
            std::thread::yield_now();
        }
        asks.join().expect("asked").expect("the core comes round");
        left
    });
    let mut seconds = Vec::new();
    for _ in 0..time.as_secs() {
        let before = left;
        (0..1000).for_each(|_| left = run(now, pace));
        seconds.push(before - left);
    }
    seconds
}

#[test]
fn a_closing_ends_connections_evenly_over_its_time_and_no_others() {
    let mut bench = core_with(600);
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    // A number that nothing has ends nothing.
    let nothing = Closing {
        number: 2,
        over: second,
    };
    assert_eq!(closed(&mut bench, nothing, second), [0]);
    bench.core.standby.set_server(0, Service::Drained, Instant::ZERO);
    bench.core.standby.close_server(0, 1);
    let closing = Closing {
        number: 1,
        over: minute,
    };
    let seconds = closed(&mut bench, closing, minute + second);
    let even = 600 / 60;
    assert!(
        seconds[1..59]
            .iter()
            .all(|closed| (even * 8 / 10..=even * 12 / 10).contains(closed)),
        "{seconds:?}"
    );
    assert_eq!(seconds.iter().sum::<usize>(), 600, "{seconds:?}");
    bench.assert_all_returned("closed");
}

#[test]
fn without_a_time_all_are_ended_a_few_in_a_round_and_what_is_back_stays() {
    let mut bench = core_with(300);
    let closing = |number, seconds| Closing {
        number,
        over: Duration::from_secs(seconds),
    };
    bench.core.standby.set_engine(Service::InMaintenance);
    bench.core.standby.close_engine(3);
    let seconds = closed(&mut bench, closing(3, 100), Duration::from_secs(10));
    let gone: usize = seconds.iter().sum();
    assert!((24..=36).contains(&gone), "{seconds:?}");
    bench.core.standby.set_engine(Service::In);
    assert_eq!(
        closed(&mut bench, closing(4, 0), Duration::from_secs(2)),
        [0, 0],
        "it is back"
    );
    bench.core.standby.set_listener(0, Service::Drained);
    bench.core.standby.close_listener(0, 5);
    let seconds = closed(&mut bench, closing(5, 0), Duration::from_secs(1));
    assert_eq!(
        bench.core.handle.look(|proxy| proxy.usage().connections),
        0,
        "{seconds:?}"
    );
    bench.assert_all_returned("killed");
}
