//! What the library costs in system calls.

use super::{PATIENCE, connect, header, in_namespace, rest, runs, server_library};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How often each system call named a socket, in a log of strace; of redis' own work ten times a second none does.
fn socket_calls(log: &str) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains("<socket:[")) {
        // The process comes first, then CALL(ARGUMENTS; what is resumed names no socket.
        let name = line
            .split_once(' ')
            .and_then(|(_, call)| call.trim_start().split_once('('));
        if let Some((name, _)) = name {
            *calls.entry(name.to_owned()).or_default() += 1;
        }
    }
    calls
}

/// Calls on redis' sockets for a client that is accepted, sends so many commands, each after the answer to the one before,
/// and ends the server.
fn traced(preloaded: bool, commands: u32) -> BTreeMap<String, u64> {
    let file = std::env::temp_dir().join(format!("lpp-strace-{}-{preloaded}", std::process::id()));
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-e", "trace=%desc,%network", "-o"]);
    command.arg(&file).args(["redis-server", "--port", "6379"]);
    command
        .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .args(["--protected-mode", "no"])
        .stdout(Stdio::null())
        .stdin(Stdio::null());
    if preloaded {
        command.env("LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER", "1");
        // For strace itself it has no effect: it accepts nothing.
        command.env("LD_PRELOAD", server_library());
    }
    let mut child = command.spawn().expect("strace");
    let begin = Instant::now();
    while !runs("sh", &["-c", "ss -Hltn 'sport = :6379' | grep -q ."]) {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut client = connect(6379);
    if preloaded {
        client.write_all(&header("203.0.113.7:1")).expect("sent");
    }
    let mut answer = [0; 7];
    for _ in 0..commands {
        client.write_all(b"PING\r\n").expect("sent");
        client.read_exact(&mut answer).expect("an answer");
    }
    client.write_all(b"SHUTDOWN NOSAVE\r\n").expect("sent");
    let _ = rest(&mut client);
    child.wait().expect("it ends");
    let log = std::fs::read_to_string(&file).expect("the log");
    let _ = std::fs::remove_file(file);
    socket_calls(&log)
}

#[test]
fn reading_and_writing_cost_no_further_system_call() {
    const COMMANDS: u32 = 500;
    in_namespace(&["redis-server", "strace", "ss"], || {
        let (with, without) = (traced(true, COMMANDS), traced(false, COMMANDS));
        let calls_of = |counts: &BTreeMap<String, u64>, name: &str| counts.get(name).copied().unwrap_or(0);
        for (name, calls) in &with {
            let more = calls.saturating_sub(calls_of(&without, name));
            // Accepting a connection and reading its header takes a handful; a call for every tenth command is 50.
            assert!(more < 30, "{more} more calls of {name}: {with:?} against {without:?}");
        }
        let written = calls_of(&without, "write") + calls_of(&without, "sendto");
        assert!(written >= u64::from(COMMANDS), "{without:?}");
    });
}
