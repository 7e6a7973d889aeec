//! Calls that a signal interrupts, and children of `fork` and `vfork` in the middle of one.

use super::{compile, connect, header, in_namespace, start};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How often a way of being interrupted is tried, unless `LIBPROXYPROTO_TEST_TIMES` says otherwise: 1000000 takes a minute for
/// signals and for `vfork`, and some ten for `fork`.
fn times(usual: u32) -> u32 {
    let wanted = std::env::var("LIBPROXYPROTO_TEST_TIMES");
    wanted.ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Runs tests/interrupted.c with two clients, 203.0.113.7:4001 and :4002.
fn interrupted(by: &str, times: u32) {
    let by = by.to_owned();
    in_namespace(&["ss", "cc"], move || {
        let (_folder, program) = compile("interrupted");
        let mut command = Command::new(program);
        let mut server = start(
            command.args([&by, &times.to_string(), "443"]).stdout(Stdio::piped()),
            443,
            true,
        );
        let clients = [4001, 4002].map(|port| {
            let mut client = connect(443);
            client.write_all(&header(&format!("203.0.113.7:{port}"))).expect("sent");
            // One after the other.
            std::thread::sleep(Duration::from_millis(50));
            client
        });
        let begin = Instant::now();
        let each = if by == "fork" || by == "halves" { 10_000 } else { 500 };
        let limit = Duration::from_secs(60) + Duration::from_micros(each) * times;
        let status = loop {
            if let Some(status) = server.0.try_wait().expect("its status") {
                break status;
            }
            assert!(begin.elapsed() < limit, "it hangs: {by}");
            std::thread::sleep(Duration::from_millis(10));
        };
        drop(clients);
        eprintln!("{times} times {by} in {:?}", begin.elapsed());
        assert!(status.success(), "{by}: {status}");
    });
}

#[test]
fn calls_that_a_signal_interrupts_and_whose_handler_makes_them_again_go_on() {
    interrupted("signal", times(20_000));
}

#[test]
fn children_that_are_forked_during_a_call_are_not_stuck() {
    interrupted("fork", times(5_000));
}

#[test]
fn children_of_vfork_leave_their_parents_addresses_alone() {
    interrupted("vfork", times(20_000));
}

#[test]
fn connections_whose_header_comes_in_two_parts_are_accepted_under_signals() {
    interrupted("halves", times(2_000));
}
