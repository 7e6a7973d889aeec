//! A server that is checked, as the engine shows it, from a reload that begins it to one that ends it.

use std::time::{Duration, Instant};

use control::metrics::Format;
use e2d2::wire::tcp::TcpFlags;
use proxyengine::status::metrics;
use serde_json::Value;
use testkit::Segment;

use crate::reload::{ONE, servers, versions};
use crate::status::Served;

/// What `ctl show servers` has of the only server once that is so.
#[track_caller]
fn shown_when(served: &Served, what: &str, is_so: impl Fn(&Value) -> bool, mut meanwhile: impl FnMut()) -> Value {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let (_, all) = served.ask("servers");
        if is_so(&all[0]) {
            return all[0].clone();
        }
        assert!(Instant::now() < deadline, "never {what}: {all}");
        meanwhile();
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_server_that_is_checked_is_shown_as_down_and_as_up_again() {
    let mut served = Served::start("proxy-checked");
    let check = "check = { kind = \"tcp\", interval = \"20ms\", fast_interval = \"10ms\", timeout = \"200ms\" }";
    let checked = ONE.replace(" }", &format!(", {check} }}"));
    let [with, without] = versions(&served.bench, [checked, ONE.to_owned()]);
    assert_eq!(served.ask("servers").1[0]["check"], Value::Null);
    served
        .bench
        .engine
        .reload(&with)
        .unwrap_or_else(|error| panic!("{error}"));
    let down = shown_when(&served, "down", |server| server["state"] == "down", || {});
    assert_eq!(down["check"], "unanswered");
    let (_, wrong) = served.ask("wrong");
    let told = wrong.to_string();
    assert!(
        told.contains("server one: down for ") && told.contains(" s, check unanswered"),
        "{told}"
    );
    assert!(told.contains("pool pool: every server is passed over"), "{told}");
    assert_eq!(served.ask("pools").1[0]["down"], 1);
    let gauge = |served: &Served| {
        let text = metrics::text(&served.bench.engine.watch(), Format::Text);
        let lines = text
            .lines()
            .filter(|line| line.starts_with("proxyengine_server_check_down{"));
        lines.map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(gauge(&served), ["proxyengine_server_check_down{server=\"one\"} 1"]);

    let server = servers()[0];
    let answer = || {
        let asked = served.bench.segment_to(server);
        if asked.flags == TcpFlags::SYN {
            let syn_ack = Segment {
                seq: 7_000,
                ack: asked.seq.wrapping_add(1),
                flags: TcpFlags::SYN | TcpFlags::ACK,
                ..Segment::between(server, asked.from)
            };
            served.bench.send(&syn_ack.frame());
        }
    };
    let up = shown_when(&served, "up", |server| server["state"] == "up", answer);
    assert_eq!((&up["check"], &up["ejections"]), (&"passed".into(), &0.into()));
    assert_eq!(gauge(&served), ["proxyengine_server_check_down{server=\"one\"} 0"]);

    shown_when(&served, "down again", |server| server["state"] == "down", || {});
    served
        .bench
        .engine
        .reload(&without)
        .unwrap_or_else(|error| panic!("{error}"));
    let (_, all) = served.ask("servers");
    assert_eq!((&all[0]["state"], &all[0]["check"]), (&"up".into(), &Value::Null));
    assert_eq!(gauge(&served), [""; 0]);
    served.end();
}
