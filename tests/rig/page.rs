//! The status page in Chromium, which has no window and runs where the engine does.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rig::engine::EngineOptions;
use rig::{HOSTS, Place, Rig, RigOptions, SERVERS, process, servers};

use crate::setup::{LIMIT, Setup};

const PAGE: &str = "127.0.0.1:9180";

pub(crate) const BROWSER: &str = "chromium-headless-shell";

/// How the page is looked at.
struct View {
    name: &'static str,
    /// Of the window, in pixels.
    size: (u16, u16),
    /// The colour scheme that its reader prefers: Blink counts 0 as dark, 1 as light.
    scheme: u8,
}

const VIEWS: [View; 4] = [
    View {
        name: "page-light",
        size: (1000, 496),
        scheme: 1,
    },
    View {
        name: "page-dark",
        size: (1000, 496),
        scheme: 0,
    },
    View {
        name: "page-phone",
        size: (390, 640),
        scheme: 1,
    },
    View {
        name: "page-phone-dark",
        size: (390, 640),
        scheme: 0,
    },
];

/// The document that scripts have made of the page, and its picture in a file.
fn look(rig: &Rig, view: &View) -> (String, PathBuf) {
    let picture = rig.file(&format!("{}.png", view.name));
    let (width, height) = view.size;
    let looked = |what: &str| {
        let mut browser = rig.command(Place::Engine, BROWSER);
        browser
            // As root there is no other way; it sees nothing but the engine.
            .args([
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--enable-logging=stderr",
            ])
            .arg(format!("--user-data-dir={}", rig.file("browser").display()))
            .arg(format!("--window-size={width},{height}"))
            .arg(format!("--blink-settings=preferredColorScheme={}", view.scheme))
            // Timers of so many ms are over as soon as nothing else is to be done: the page asks several times.
            .arg("--virtual-time-budget=10000")
            .args([what, &format!("http://{PAGE}/")]);
        let output = process::run(&mut browser, b"", LIMIT).expect("a browser");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let complaints: Vec<&str> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
        assert!(complaints.is_empty(), "{}: {complaints:#?}", view.name);
        output.text()
    };
    let document = looked("--dump-dom");
    looked(&format!("--screenshot={}", picture.display()));
    (document, picture)
}

/// What the page shows in its part with this id.
fn part<'a>(document: &'a str, id: &str) -> &'a str {
    let (_, rest) = document.split_once(&format!("id=\"{id}\"")).unwrap_or_default();
    rest.split("</section>").next().unwrap_or_default()
}

/// Asks the engine for all servers in turn, the last of which is not there, until it is told that it is over.
fn ask(rig: &Rig, is_over: &AtomicBool) {
    let servers = (0..SERVERS).cycle();
    for server in servers.take_while(|_| !is_over.load(Ordering::Relaxed)) {
        let url = format!("http://{}/", HOSTS[server]);
        let curl = rig.run(Place::Clients, "curl", &["-sS", "--max-time", "50", &url], LIMIT);
        assert_eq!(curl.is_ok(), server + 1 < SERVERS, "{url}");
    }
}

/// Tells them, also when a look at the page panics: whoever waits for their thread would wait for ever.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_page_shows_the_engine_in_a_browser_without_a_complaint() {
    let options = EngineOptions {
        tables: format!("[control]\nhttp = \"{PAGE}\"\n"),
        ..EngineOptions::default()
    };
    let start = |rig: &Rig| {
        let start = |index| servers::start_nginx(rig, index).expect("nginx starts");
        (0..SERVERS - 1).map(start).collect()
    };
    let Some(setup) = Setup::new(RigOptions::default(), &options, &["curl", "nginx", BROWSER], start) else {
        return;
    };
    let is_over = AtomicBool::new(false);
    let pictures = std::thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| ask(&setup.rig, &is_over));
        std::thread::sleep(Duration::from_secs(2));
        VIEWS.map(|view| seen(&setup.rig, &view))
    });
    let [light, dark, phone, phone_dark] = &pictures;
    assert!(
        light != dark && phone != phone_dark,
        "a reader's colour scheme is followed"
    );
    setup.finish();
}

/// The headings of a part's table behind its name, a line for each, as `scripts/screenshots.sh` writes them into pictures.
fn headings(document: &str, id: &str) -> String {
    let buttons = part(document, id).split("<button>").skip(1);
    let headings = buttons.filter_map(|rest| rest.split('<').next());
    let lines = std::iter::once(id)
        .chain(headings)
        .map(|line| line.replace('\n', " ") + "\n");
    lines.collect()
}

/// A picture of the page, which shows what there is.
fn seen(rig: &Rig, view: &View) -> Vec<u8> {
    let (document, picture) = look(rig, view);
    let state = part(&document, "state");
    assert!(state.contains("ready") && !state.contains("no answer"), "{state}");
    for (id, shown) in [
        ("wrong", "every server is passed over"),
        ("servers", "10.77.0.11:80"),
        ("listeners", "http"),
        ("rules", "default"),
        ("cores", "rounds"),
    ] {
        let part = part(&document, id);
        assert!(part.contains(shown), "no {shown} in {id} of {document}");
        if id != "wrong" {
            let headings = headings(&document, id);
            assert!(headings.lines().count() > 3, "{headings}");
            for name in ["page-light", "page-dark", "page-phone"] {
                let kept = fs::read(format!("{}/docs/{name}.png", env!("CARGO_MANIFEST_DIR"))).expect("a picture");
                let is_shown = kept.windows(headings.len()).any(|bytes| bytes == headings.as_bytes());
                assert!(
                    is_shown,
                    "docs/{name}.png is not of {headings}: run scripts/screenshots.sh"
                );
            }
        }
    }
    let picture = fs::read(picture).expect("a picture");
    assert!(picture.starts_with(b"\x89PNG\r\n\x1a\n"));
    picture
}
