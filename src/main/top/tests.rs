//! Screens of two readings, and what keys do to them.

use std::fs;
use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use serde_json::{Value, json};

use super::readings::Readings;
use super::screen;
use super::state::{State, Then};
use super::tables::{Order, Severity, TABLES, duration, short};

fn server(name: &str, state: &str, calls: u64, failures: u64) -> Value {
    json!({
        "name": name, "pools": "web", "address": format!("10.0.0.{}:8080", name.len()), "state": state, "for_s": 4000,
        "why": match state { "out" => Some("calls failed"), "drained" => Some("operator"), _ => None }, "last_failure": null,
        "open": calls / 10, "calls": calls, "failures": failures, "ejections": failures / 3, "mss": 1460,
        "connect_ms_p50": 0.192, "connect_ms_p99": 12.5, "first_byte_ms_p50": null, "first_byte_ms_p99": 130.0,
    })
}

/// A status after so many turns of 2 s.
fn status(turn: u64) -> Value {
    let listener = json!({
        "name": "web", "addresses": "10.0.0.1:80 [2001:db8::1]:80", "open": 812, "connections": 20_000 + 3_000 * turn,
        "bytes_to_server": 1, "bytes_to_client": 2,
    });
    let pool = json!({
        "name": "web", "servers": 4, "out": 1, "partly_out": 0, "down": 0, "open": 812, "calls": 20_000 + 3_000 * turn,
        "failures": 60 * turn, "connections": 20_000 + 2_970 * turn, "connect_ms_p50": 0.2, "connect_ms_p99": 12.5,
        "first_byte_ms_p50": 1.0, "first_byte_ms_p99": 9.5, "choice_ms_p50": 0.5, "choice_ms_p99": 4.25,
    });
    let core = |core: u64| {
        json!({
            "core": core, "open": 406, "busy_rounds": 1_000_000 + 90_000 * turn, "idle_rounds": 5_000_000 * turn,
            "busy_ms": 700 + 826 * turn, "longest_round_us": 48, "received": 90_000 + 41_000 * turn, "sent": 90_000 + 40_900 * turn, "dropped": 90 * turn,
        })
    };
    let drop = |group, reason, count| json!({ "group": group, "reason": reason, "count": count, "loss": reason != "consumed" });
    json!({
        "stat": { "version": "0.1.0", "uptime_ms": 9_000_000 + 2_000 * turn, "connections_open": 812 },
        "not_ready": null,
        "wrong": [
            { "severity": "critical", "sentence": "port left: its link is down" },
            { "severity": "warning", "sentence": "server b-three: out for 4000 s, calls failed (60 of 9000 so far failed)" },
        ],
        "servers": [
            server("a-one", "up", 5_000 + 1_500 * turn, 0),
            server("a-second", "up", 5_000 + 1_500 * turn, 3 * turn),
            server("b-three", "out", 9_000, 60 * turn),
            server("b-fourth-one", "drained", 12, 0),
        ],
        "pools": [pool],
        "listeners": [listener],
        "rules": [
            { "listener": "web", "rule": "api", "pool": "web", "connections": 15_000 + 2_500 * turn },
            { "listener": "web", "rule": "1", "pool": "web", "connections": 120 + 470 * turn },
            { "listener": "web", "rule": "default", "pool": null, "connections": 0 },
        ],
        "cores": [core(2), core(3)],
        "drops": [
            drop("graph_drops", "malformed", 7),
            drop("proxy_drops", "bad_cookie", 1_000 + 180 * turn),
            drop("proxy_drops", "consumed", 500 * turn),
        ],
        "ports": [],
        "neighbours": [],
    })
}

fn two_readings() -> Readings {
    let mut readings = Readings::new(status(0));
    readings.take(status(1));
    readings
}

fn drawn(state: &mut State, readings: &Readings, (width, height): (u16, u16)) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal
        .draw(|frame| screen::draw(frame, state, readings))
        .expect("drawn");
    terminal
}

fn lines(terminal: &Terminal<TestBackend>) -> Vec<String> {
    let buffer = terminal.backend().buffer();
    let width = usize::from(buffer.area.width);
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
    let lines = buffer.content.chunks(width).map(line);
    lines.map(|line| line.trim_end().to_owned()).collect()
}

fn press(state: &mut State, code: KeyCode) -> Then {
    state.handle_key(KeyEvent::new(code, KeyModifiers::NONE))
}

/// Holds a screen against its file, or writes it.
fn hold(name: &str, lines: &[String]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let text = lines.join("\n") + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, text).expect("written");
        return;
    }
    assert_eq!(
        fs::read_to_string(&path).unwrap_or_default(),
        text,
        "{}: UPDATE_GOLDEN=1 cargo test --bin proxyengine top",
        path.display()
    );
}

#[test]
fn screens_are_as_kept() {
    let readings = two_readings();
    for (width, height) in [(80, 24), (120, 40)] {
        let mut state = State::default();
        let mut all = Vec::new();
        for _ in &TABLES {
            all.extend(lines(&drawn(&mut state, &readings, (width, height))));
            all.push("=".repeat(usize::from(width)));
            press(&mut state, KeyCode::Tab);
        }
        hold(&format!("top_{width}x{height}.txt"), &all);
    }
}

#[test]
fn what_is_wrong_is_first_and_has_its_colour() {
    let readings = two_readings();
    let mut state = State::default();
    let terminal = drawn(&mut state, &readings, (80, 24));
    let text = lines(&terminal);
    let at = |word: &str| {
        let found = text.iter().position(|line| line.starts_with(word));
        found.unwrap_or_else(|| panic!("no {word} in {text:#?}")) as u16
    };
    let colour = |line: u16| terminal.backend().buffer()[(0, line)].fg;
    assert_eq!((at("! port left"), colour(at("! port left"))), (2, Color::Red));
    assert_eq!(
        (colour(at("b-three")), colour(at("b-fourth"))),
        (Color::Red, Color::Yellow)
    );
    // It fails 1.5 times a second, which nobody has ejected it for.
    assert_eq!(
        (colour(at("a-second")), colour(at("a-one"))),
        (Color::Yellow, Color::Reset)
    );
    assert!(at("b-three") < at("a-second") && at("a-second") < at("b-fourth") && at("b-fourth") < at("a-one"));
    assert!(
        text.iter().any(|line| line.contains("dropping 90/s: bad_cookie")),
        "{text:#?}"
    );
}

#[test]
fn keys_choose_order_filter_and_place() {
    let readings = two_readings();
    let mut state = State::default();
    let names = |state: &mut State| -> Vec<String> {
        let order = state.view().order;
        let rows = state.table().1.rows(&readings, &state.word, order);
        rows.into_iter().map(|row| row.cells[0].text.clone()).collect()
    };
    press(&mut state, KeyCode::Char('s'));
    assert_eq!(names(&mut state), ["a-one", "a-second", "b-fourth-one", "b-three"]);
    press(&mut state, KeyCode::Char('r'));
    assert_eq!(names(&mut state), ["b-three", "b-fourth-one", "a-second", "a-one"]);
    for _ in 0..3 {
        press(&mut state, KeyCode::F(6));
    }
    assert_eq!(names(&mut state)[0], "b-three", "by open connections");
    for _ in 0..4 {
        press(&mut state, KeyCode::Left);
    }
    assert_eq!(state.view().order, Order::default());
    press(&mut state, KeyCode::Char('/'));
    for char in "B-q".chars() {
        assert_eq!(press(&mut state, KeyCode::Char(char)), Then::GoOn);
    }
    assert!(names(&mut state).is_empty());
    press(&mut state, KeyCode::Backspace);
    press(&mut state, KeyCode::Enter);
    assert_eq!(names(&mut state), ["b-three", "b-fourth-one"]);
    press(&mut state, KeyCode::PageDown);
    drawn(&mut state, &readings, (80, 24));
    assert_eq!(state.view().place.selected(), Some(1), "the last row");
    press(&mut state, KeyCode::Esc);
    assert_eq!(names(&mut state).len(), 4);
    press(&mut state, KeyCode::BackTab);
    assert_eq!(state.table().1.part, TABLES[TABLES.len() - 1].part);
    assert_eq!(press(&mut state, KeyCode::Char('q')), Then::Quit);
    press(&mut state, KeyCode::Char('/'));
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(state.handle_key(control_c), Then::Quit);
}

#[test]
fn rates_begin_with_the_second_reading_and_anew_with_another_engine() {
    let mut readings = Readings::new(status(0));
    let rate = |readings: &Readings| TABLES[2].rows(readings, "", Order::default())[0].cells[2].text.clone();
    assert_eq!(rate(&readings), "–");
    readings.take(status(1));
    assert_eq!(rate(&readings), "1500");
    readings.take(status(0));
    assert_eq!(rate(&readings), "–");
}

/// An engine of another version, or something else altogether, answers.
#[test]
fn whatever_is_answered_is_drawn_on_any_size() {
    let rows = json!([null, 3, [], {"name": 7, "count": "x", "severity": {}, "sentence": "\u{1b}[31m\n"}]);
    let odd = TABLES.iter().map(|table| (table.part.to_owned(), rows.clone()));
    let mut odd: serde_json::Map<String, Value> = odd.collect();
    odd.insert("wrong".to_owned(), rows.clone());
    for answer in [
        json!(null),
        json!([1]),
        json!({"stat": [], "servers": {}}),
        Value::Object(odd),
        status(3),
    ] {
        let mut readings = Readings::new(answer.clone());
        readings.take(answer);
        let mut state = State::default();
        for size in [(1, 1), (3, 2), (20, 5), (200, 3), (80, 24)] {
            for _ in &TABLES {
                let text = lines(&drawn(&mut state, &readings, size)).concat();
                assert!(!text.contains(char::is_control));
                press(&mut state, KeyCode::Tab);
                press(&mut state, KeyCode::End);
            }
        }
    }
}

#[test]
fn numbers_are_short() {
    let of = [
        (0.0, "0"),
        (9_999.0, "9999"),
        (12.34, "12.3"),
        (123.4, "123"),
        (12_345.0, "12k"),
        (1_234_567.0, "1.2M"),
    ];
    for (number, text) in of.into_iter().chain([(123_456_789.0, "123M"), (2.5e9, "2.5G")]) {
        assert_eq!(short(number), text);
    }
    let of = [(119.0, "119 s"), (120.0, "2 min"), (7_200.0, "2 h"), (172_800.0, "2 d")];
    of.into_iter()
        .for_each(|(seconds, text)| assert_eq!(duration(seconds), text));
    assert!(Severity::Well < Severity::Critical);
}

#[test]
fn the_picture_in_the_manual_has_the_columns_tables_and_keys_of_today() {
    let picture = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/top.svg")).expect("the picture");
    let texts: Vec<&str> = picture
        .split("</text>")
        .filter_map(|text| text.rsplit('>').next())
        .collect();
    let shown: Vec<&str> = texts.iter().flat_map(|text| text.split_whitespace()).collect();
    let columns = TABLES[0].columns.iter().map(|column| column.title);
    let (tables, keys) = (TABLES.iter().map(|table| table.part), screen::KEYS);
    let keys = keys.iter().flat_map(|(key, does)| [*key, *does]);
    for expected in [columns.collect::<Vec<_>>(), tables.collect(), keys.collect()] {
        let words: Vec<&str> = expected.iter().flat_map(|text| text.split(' ')).collect();
        let is_shown = shown.windows(words.len()).any(|shown| shown == words);
        assert!(is_shown, "no {words:?} in docs/top.svg: run scripts/screenshots.sh");
    }
}
