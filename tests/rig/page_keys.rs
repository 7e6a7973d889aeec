//! The status page of an engine with a thousand servers, worked by keyboard: Chromium takes keys over its DevTools protocol.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rig::engine::EngineOptions;
use rig::{Place, RigOptions};
use serde_json::{Value, json};

use crate::page::BROWSER;
use crate::setup::{LIMIT, Setup};

const PAGE: &str = "127.0.0.1:9181";

/// Of a pool of their own.
const SERVERS: usize = 1_000;

/// A browser with one page. Messages are JSON, each ended by a NUL, over the descriptors 3 and 4.
struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    number: u64,
    session: Option<String>,
    /// What the page has complained of.
    complaints: Vec<Value>,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Browser {
    /// Opens `url` with what `program` starts.
    fn open(mut program: Command, url: &str) -> Browser {
        let mut child = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a browser");
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let mut browser = Browser {
            child,
            to: to.expect("piped"),
            from: BufReader::new(from.expect("piped")),
            number: 0,
            session: None,
            complaints: Vec::new(),
        };
        let target = browser.ask("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = browser.ask(
            "Target.attachToTarget",
            json!({ "targetId": target["targetId"], "flatten": true }),
        );
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime", "Log", "Page"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser.ask("Page.navigate", json!({ "url": url }));
        browser
    }

    /// Calls a method, and returns its result.
    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        let mut message = json!({ "id": self.number, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to
            .write_all(format!("{message}\0").as_bytes())
            .expect("a browser that listens");
        loop {
            let mut bytes = Vec::new();
            self.from.read_until(0, &mut bytes).expect("a browser that answers");
            assert_eq!(bytes.pop(), Some(0), "the browser has ended");
            let mut said: Value = serde_json::from_slice(&bytes).expect("JSON");
            let event = said["method"].as_str().unwrap_or_default();
            if matches!(
                event,
                "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded"
            ) {
                self.complaints.push(said);
            } else if said["id"] == self.number {
                assert!(said["error"].is_null(), "{method}: {said}");
                return said["result"].take();
            }
        }
    }

    /// What an expression is in the page.
    fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true });
        self.ask("Runtime.evaluate", parameters)["result"]["value"].take()
    }

    /// Waits until it is true.
    fn wait_for(&mut self, expression: &str) {
        let begun = Instant::now();
        while self.value(expression) != true {
            assert!(begun.elapsed() < LIMIT, "never so: {expression}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Presses a key and lets it go; `code` is that of Windows, `text` what it types.
    fn press(&mut self, key: &str, code: u32, text: &str) {
        for kind in ["keyDown", "keyUp"] {
            let mut parameters = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                parameters["text"] = json!(text);
            }
            self.ask("Input.dispatchKeyEvent", parameters);
        }
    }

    fn type_text(&mut self, text: &str) {
        for letter in text.chars() {
            self.press(
                &letter.to_string(),
                u32::from(letter.to_ascii_uppercase()),
                &letter.to_string(),
            );
        }
    }

    /// Presses Tab until this is true of the element with the focus, `at`.
    fn tab_to(&mut self, which: &str) {
        let is_there = format!("(at => {which})(document.activeElement)");
        for _ in 0..100 {
            if self.value(&is_there) == true {
                return;
            }
            self.press("Tab", 9, "");
        }
        panic!("Tab leads to no such element: {which}");
    }
}

#[test]
fn a_page_of_a_thousand_servers_is_sorted_and_filtered_by_keyboard() {
    let servers: String = (0..SERVERS)
        .map(|number| {
            format!(
                "  {{ name = \"zone{number:03}\", address = \"10.77.0.11:{}\" }},\n",
                20_000 + number
            )
        })
        .collect();
    let options = EngineOptions {
        tables: format!("[control]\nhttp = \"{PAGE}\"\n\n[[pool]]\nname = \"many\"\nservers = [\n{servers}]\n"),
        ..EngineOptions::default()
    };
    let Some(setup) = Setup::new(RigOptions::default(), &options, &[BROWSER], |_| Vec::new()) else {
        return;
    };
    // The shell gives the browser its descriptors 3 and 4, and an end should it hang.
    let mut program = setup.rig.command(Place::Engine, "sh");
    program
        .args([
            "-c",
            "exec timeout 120 \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1",
            BROWSER,
        ])
        .args([
            // As root there is no other way; it sees nothing but the engine.
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
        ]);
    program.arg(format!("--user-data-dir={}", setup.rig.file("browser").display()));
    let mut browser = Browser::open(program, &format!("http://{PAGE}/"));
    let rows = "document.querySelectorAll('#servers tbody tr').length";
    browser.wait_for(&format!("{rows} >= {SERVERS}"));
    let all = browser.value(rows);

    browser.tab_to("at.tagName === 'BUTTON' && at.textContent === 'name' && at.closest('section').id === 'servers'");
    let first = "document.querySelector('#servers tbody td').textContent";
    let order = "document.activeElement.closest('th').getAttribute('aria-sort')";
    browser.press("Enter", 13, "\r");
    assert_eq!(browser.value(order), "ascending");
    browser.press("Enter", 13, "\r");
    assert_eq!(
        (browser.value(order), browser.value(first)),
        (json!("descending"), json!("zone999"))
    );

    browser.ask("Page.reload", json!({}));
    browser.wait_for(&format!("{rows} >= {SERVERS}"));
    browser.tab_to("at.tagName === 'INPUT' && at.getAttribute('aria-label') === 'filter servers'");
    browser.type_text("zone123");
    browser.wait_for(&format!("{rows} === 1 && {first} === 'zone123'"));
    // The page asks once a second: what was typed, and the focus, stay.
    let looked = "before.stat.uptime_ms";
    let when = browser.value(looked);
    browser.wait_for(&format!("{looked} > {when}"));
    assert_eq!(
        (browser.value(rows), browser.value("document.activeElement.value")),
        (json!(1), json!("zone123"))
    );
    for _ in 0.."zone123".len() {
        browser.press("Backspace", 8, "");
    }
    browser.wait_for(&format!("{rows} === {all}"));

    assert!(browser.complaints.is_empty(), "{:#?}", browser.complaints);
    drop(browser);
    setup.finish();
}
