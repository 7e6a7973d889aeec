//! What `ctl` has changed, while the file says something else.

use std::fs;

use proxyengine::config::Standing;
use proxyengine::engine::{Subject, Watch};
use proxyengine::journal::{Change, Journal};
use proxyengine::log_levels::LogLevels;
use splice::standby::Service;
use testkit::Station;

use crate::proxy::Bench;
use crate::reload::{ONE, TWO, versions};
use crate::wire::assert_in_order;

/// A listener that keeps its number, but has another address now, is in service again: nobody has said otherwise of it as it is.
#[test]
fn what_the_file_overrules_is_undone() {
    let mut bench = Bench::start("proxy-undone", None);
    let (journal, levels, watch) = (Journal::default(), LogLevels::default(), bench.engine.watch());
    let name = bench.engine.config().listeners()[0].name.clone();
    let drained = Change::Service(Subject::Listener(&name), Service::Drained);
    watch
        .set_service(Subject::Listener(&name), Service::Drained)
        .unwrap_or_else(|error| panic!("{error}"));
    journal.note(bench.engine.config(), &drained);
    let [path] = versions(&bench, [ONE.to_owned()]);
    let text = fs::read_to_string(&path).expect("a file");
    fs::write(
        &path,
        text.replacen("[\"10.0.0.1:80\"]", "[\"10.0.0.1:80\", \"10.0.0.1:81\"]", 1),
    )
    .expect("a file");
    bench.engine.reload(&path).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(bench.engine.config().listeners()[0].addresses.len(), 2);
    journal.apply(&watch, &levels);
    assert_eq!(journal.lines(), "");
    bench.open(Station::new(5, "10.0.0.5:50000"));
    assert_in_order(&bench.engine.shutdown());
}

/// A server that was drained and left the file comes back while a connection names it: in service, as any other of the file.
#[test]
fn a_server_that_comes_back_to_the_file_is_in_service() {
    let mut bench = Bench::start("proxy-comes-back", None);
    let [other, back] = versions(&bench, [TWO.to_owned(), ONE.to_owned()]);
    bench.open(Station::new(5, "10.0.0.5:50000"));
    let watch = bench.engine.watch();
    watch
        .set_service(Subject::Server("one"), Service::Drained)
        .unwrap_or_else(|error| panic!("{error}"));
    for path in [&other, &back] {
        bench.engine.reload(path).unwrap_or_else(|error| panic!("{error}"));
    }
    bench.open(Station::new(5, "10.0.0.5:50001"));
    assert_in_order(&bench.engine.shutdown());
}

/// A server that is drained and has another name in the next version of the file, but its address, keeps its number: it is in service, as
/// nobody has said otherwise of that name. One that a pool's drain holds stays out when what was said of it alone holds no longer.
#[test]
fn what_no_change_names_any_more_is_in_service() {
    let mut bench = Bench::start("proxy-renamed", None);
    let (journal, levels, watch) = (Journal::default(), LogLevels::default(), bench.engine.watch());
    let renamed = ONE.replace("\"one\"", "\"uno\"");
    let moved = ONE.replace("10.0.0.9:8080", "10.0.0.9:8081");
    let [uno, elsewhere, back] = versions(&bench, [renamed, moved, ONE.to_owned()]);
    let out = |name: &str| {
        let config = watch.config();
        let server = config
            .servers()
            .iter()
            .find(|server| server.standing == Standing::InFile && server.name == name)
            .expect("a server");
        watch.standby().of_server(server.id.0)
    };
    let change = |bench: &Bench, change: Change<'_>| {
        let Change::Service(subject, service) = change else {
            return;
        };
        watch
            .set_service(subject, service)
            .unwrap_or_else(|error| panic!("{error}"));
        journal.note(bench.engine.config(), &change);
    };
    let reload = |bench: &mut Bench, path| {
        bench.engine.reload(path).unwrap_or_else(|error| panic!("{error}"));
        journal.apply(&watch, &levels);
    };
    change(&bench, Change::Service(Subject::Server("one"), Service::Drained));
    reload(&mut bench, &uno);
    assert_eq!((out("uno"), journal.lines().as_str()), (Service::In, ""));
    reload(&mut bench, &back);
    let pool = bench.engine.config().pools()[0].name.clone();
    change(&bench, Change::Service(Subject::Pool(&pool), Service::Drained));
    change(&bench, Change::Service(Subject::Server("one"), Service::InMaintenance));
    assert_eq!(out("one"), Service::InMaintenance);
    reload(&mut bench, &elsewhere);
    assert_eq!(out("one"), Service::Drained, "{}", journal.lines());
    journal.reset(&watch, &levels);
    assert_eq!((out("one"), journal.lines().as_str()), (Service::In, ""));
    bench.engine.shutdown();
}

/// Of an engine that starts again: what another has taken over is not announced, and who is out is not called.
#[test]
fn what_ctl_has_changed_holds_before_a_core_runs() {
    let (journal, levels) = (Journal::default(), LogLevels::default());
    let prepare = |watch: &Watch| {
        let config = watch.config();
        journal.note(&config, &Change::Announce(false));
        journal.note(&config, &Change::Service(Subject::Server("one"), Service::Drained));
        journal.apply(watch, &levels);
    };
    let bench = Bench::start_prepared("proxy-prepared", &prepare);
    assert_eq!(bench.engine.watch().standby().of_server(0), Service::Drained);
    // Each address is announced twice, a second apart.
    for _ in 0..2 {
        let announced = bench.wait_for(|frame| frame[12..14] == [8, 6]);
        assert_eq!(announced[28..32], [10, 0, 0, 1], "not that of the other listener");
    }
    assert_in_order(&bench.engine.shutdown());
}

/// A server that comes to a pool which is drained is out before any core can call it, and is not when the drain is over.
#[test]
fn what_a_reload_brings_begins_in_service_or_out() {
    let mut bench = Bench::start("proxy-begins", None);
    let (journal, watch) = (Journal::default(), bench.engine.watch());
    let of_engine = journal.clone();
    bench.engine.follow_services(move |config| of_engine.services(config));
    let [two, one] = versions(&bench, [TWO.to_owned(), ONE.to_owned()]);
    let out = |name: &str| {
        let config = watch.config();
        let is_it = |of: &&proxyengine::config::ServerConfig| of.standing == Standing::InFile && of.name == name;
        let server = config.servers().iter().find(is_it).expect("a server");
        watch.standby().of_server(server.id.0)
    };
    let drained = Change::Service(Subject::Pool("pool"), Service::Drained);
    journal.note(bench.engine.config(), &drained);
    bench.engine.reload(&two).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(out("two"), Service::Drained);
    // It was in service when it went, and comes back while connections may name it.
    bench.engine.reload(&one).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(out("one"), Service::Drained);
    journal.note(
        bench.engine.config(),
        &Change::Service(Subject::Pool("pool"), Service::In),
    );
    bench.engine.reload(&two).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(out("two"), Service::In);
    assert_in_order(&bench.engine.shutdown());
}

/// What was said of a server that comes back stays as it was where no core takes the new version.
#[test]
fn a_reload_that_fails_leaves_who_would_come_back_as_it_was() {
    let mut bench = Bench::start("proxy-stays-out", None);
    let watch = bench.engine.watch();
    bench.open(Station::new(5, "10.0.0.5:50000"));
    let [two, one] = versions(&bench, [TWO.to_owned(), ONE.to_owned()]);
    bench.engine.reload(&two).unwrap_or_else(|error| panic!("{error}"));
    watch
        .set_service(Subject::Server("one"), Service::InMaintenance)
        .unwrap_or_else(|error| panic!("{error}"));
    let wire = bench.wire.clone();
    let stuck = wire.to_engine.lock().expect("the worker waits for it");
    std::thread::sleep(std::time::Duration::from_millis(100));
    bench.engine.reload(&one).expect_err("the worker is stuck");
    assert_eq!(watch.standby().of_server(0), Service::InMaintenance);
    drop(stuck);
    assert_in_order(&bench.engine.shutdown());
}
