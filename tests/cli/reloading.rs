//! Another configuration for a program that runs: by SIGHUP and by `ctl`.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use control::http::{Endpoint, client};

use crate::running::{Running, says, wait_until, wait_until_running};
use crate::{GOOD, Place, code, stderr};

const ONE: &str = "{ name = \"one\", address = \"10.0.0.9:80\" }";
const TWO: &str = "{ name = \"two\", address = \"10.0.0.10:80\" }";

#[test]
fn sighup_and_ctl_go_on_with_what_the_file_says_now() {
    let place = Place::new(GOOD);
    let socket = place.path("control").display().to_string();
    let file = fs::read_to_string(place.path("engine.toml")).expect("read");
    let write = |servers: &str| {
        let text = format!("[control]\nsocket = \"{socket}\"\n{file}").replace(ONE, servers);
        fs::write(place.path("engine.toml"), text).expect("write");
    };
    let ctl = |arguments: &[&str]| place.output(&[&["ctl", "--socket", &socket], arguments].concat());
    let text = |arguments: &[&str]| {
        let output = ctl(arguments);
        assert_eq!(code(&output), 0, "{arguments:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    // Name and state of each server.
    let servers = || -> Vec<(String, String)> {
        let said: serde_json::Value = serde_json::from_str(&text(&["show", "servers", "--json"])).expect("JSON");
        let rows = said.as_array().expect("rows").iter();
        let word = |row: &serde_json::Value, key: &str| row[key].as_str().expect("a word").to_owned();
        rows.map(|row| (word(row, "name"), word(row, "state"))).collect()
    };
    let names = || servers().into_iter().map(|(name, _)| name).collect::<Vec<_>>();

    write(ONE);
    let program = Running::start(&place, &["engine.toml"]);
    wait_until_running(&place);
    assert_eq!(names(), ["one"]);
    write(&format!("{ONE}, {TWO}"));
    let difference = text(&["diff"]);
    assert!(difference.contains('+') && difference.contains("two"), "{difference}");
    assert_eq!(names(), ["one"], "nothing has changed yet");
    program.signal("HUP");
    wait_until("reloaded", &place, || names() == ["one", "two"]);

    // What is wrong is told by its place, by both ways, and changes nothing.
    write("{ name = \"three\" }");
    let refused = ctl(&["reload"]);
    assert_eq!(code(&refused), 1);
    assert!(stderr(&refused).contains("pool[0].servers[0]"), "{}", stderr(&refused));
    program.signal("HUP");
    wait_until("complained", &place, || says(&place, "pool[0].servers[0]"));
    assert_eq!(names(), ["one", "two"]);

    text(&["drain", "server", "two"]);
    assert_eq!(servers()[1], ("two".to_owned(), "drained".to_owned()));
    write(TWO);
    text(&["reload"]);
    wait_until("forgotten", &place, || names() == ["two"]);
    assert_eq!(servers()[0].1, "drained", "as long as nobody says anything else");
    text(&["ready", "server", "two"]);
    assert_eq!(servers()[0].1, "up");
    assert_eq!(code(&ctl(&["drain", "server", "one"])), 1, "it is gone");
    program.signal("TERM");
    assert_eq!(program.wait().0, 0);
}

#[test]
fn what_ctl_has_changed_outlives_reloads_and_restarts_until_the_file_or_reset_says_otherwise() {
    let place = Place::new(GOOD);
    let (socket, kept) = (place.path("control").display().to_string(), place.path("journal"));
    let file = fs::read_to_string(place.path("engine.toml")).expect("read");
    let write = |server: &str, level: &str| {
        let control = format!("[control]\nsocket = \"{socket}\"\njournal = \"{}\"\n", kept.display());
        let text = format!("{control}[log]\nlevel = \"{level}\"\n{file}").replace(ONE, server);
        fs::write(place.path("engine.toml"), text).expect("write");
    };
    let text = |arguments: &[&str]| {
        let output = place.output(&[&["ctl", "--socket", &socket], arguments].concat());
        assert_eq!(code(&output), 0, "{arguments:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    let state = || {
        let said: serde_json::Value = serde_json::from_str(&text(&["show", "servers", "--json"])).expect("JSON");
        said[0]["state"].as_str().expect("a word").to_owned()
    };
    let restarted = |program: Running| {
        program.signal("TERM");
        assert_eq!(program.wait().0, 0);
        let program = Running::start(&place, &["engine.toml"]);
        wait_until_running(&place);
        program
    };
    write(ONE, "info");
    let program = Running::start(&place, &["engine.toml"]);
    wait_until_running(&place);
    text(&["maint", "server", "one", "--close-over", "1m"]);
    text(&["drain", "engine", "--kill"]);
    text(&["announce", "off"]);
    text(&["set", "log-level", "debug"]);
    let kept_lines = "ctl server one maint (file: 10.0.0.9:80)\nctl engine drain\nctl announce off (file: on)\n\
                      ctl log debug (file: INFO)\n";
    assert_eq!(text(&["diff"]), kept_lines);
    text(&["reload"]);
    assert_eq!((state().as_str(), text(&["diff"]).as_str()), ("maint", kept_lines));
    let program = restarted(program);
    assert_eq!((state().as_str(), text(&["diff"]).as_str()), ("maint", kept_lines));
    // The file says something else of the level and of the server.
    write(TWO, "warn");
    text(&["reload"]);
    assert_eq!(text(&["diff"]), "ctl engine drain\nctl announce off (file: on)\n");
    text(&["reset"]);
    assert_eq!(text(&["diff"]), "");
    write(ONE, "info");
    text(&["reload"]);
    // What is cut off is refused, and keeps nobody from starting.
    fs::write(&kept, "{\"format\": \"proxyengine journal 1\", \"chan").expect("write");
    let program = restarted(program);
    assert!(
        says(&place, "this is no whole journal"),
        "{}",
        place.path("stderr").display()
    );
    assert_eq!((state().as_str(), text(&["diff"]).as_str()), ("up", ""));
    program.signal("TERM");
    assert_eq!(program.wait().0, 0);
}

/// It reads the file and its lists again, and quotes them.
#[test]
fn what_a_reload_would_change_is_told_to_nobody_over_tcp() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let place = Place::new(&GOOD.replace("[records]", &format!("[control]\nhttp = \"{address}\"\n[records]")));
    let program = Running::start(&place, &["engine.toml"]);
    wait_until_running(&place);
    let ask = |path| client::ask(&Endpoint::Tcp(address), "GET", path).expect("an answer").0;
    assert_eq!((ask("/healthz"), ask("/api/v1/diff")), (200, 403));
    program.signal("TERM");
    assert_eq!(program.wait().0, 0);
}

#[test]
fn others_are_answered_while_a_reload_waits_for_dns() {
    let place = Place::new(GOOD);
    let socket = place.path("control").display().to_string();
    let local = Endpoint::Unix(place.path("control"));
    let file = fs::read_to_string(place.path("engine.toml")).expect("read");
    let write = |rest: &str| {
        let text = format!("[control]\nsocket = \"{socket}\"\n{file}{rest}");
        fs::write(place.path("engine.toml"), text).expect("write");
    };
    write("");
    let program = Running::start(&place, &["engine.toml"]);
    wait_until_running(&place);
    // It is asked, and says nothing.
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let dns = silent.local_addr().expect("an address");
    write(&format!(
        "\n[[pool]]\nname = \"named\"\nservers = [{{ name = \"n\", address = \"n.example.net:80\" }}]\n\
         [dns]\nservers = [\"{dns}\"]\ntimeout = \"5s\"\n"
    ));
    std::thread::scope(|scope| {
        let reload = || place.output(&["ctl", "--socket", &socket, "reload"]);
        let begin = Instant::now();
        let first = scope.spawn(reload);
        std::thread::sleep(Duration::from_secs(1));
        let asked = Instant::now();
        let healthy = client::ask(&local, "GET", "/healthz").expect("an answer");
        assert!(healthy.0 == 200 && asked.elapsed() < Duration::from_secs(1));
        assert_eq!(code(&first.join().expect("asked")), 0);
        assert!(begin.elapsed() > Duration::from_secs(4), "it has not waited");
    });
    program.signal("TERM");
    assert_eq!(program.wait().0, 0);
}
