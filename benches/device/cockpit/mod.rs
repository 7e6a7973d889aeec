//! `./build.sh bench cockpit`: what it costs a core to be looked at.
//!
//! A proxy that keeps records takes turns with itself. It counts and times connections by listener, rule, pool and server, watches some
//! of their legs and shows its numbers as a worker does, and does nothing of all that: in one place of memory, as two proxies differ by
//! more than what is measured (`placements`). Then a reader on another CPU asks for `/metrics` ten times a second and for what the page
//! shows each second, or asks nothing. A second proxy, with a thousand servers, is only shown and scraped. A third, with a million open
//! connections, takes turns with itself while a reader lists them, page after page, and while none does.

use std::time::{Duration, Instant};

use benchkit::{Measured, verdict};
use serde::Serialize;

mod reader;

use crate::device::cli::{Common, Turns};
use crate::device::pairs::{self, Pairs};
use crate::device::{BoxError, Conditions, Host, InlineProxy};
use reader::{Look, Reader};

/// What a core pays for its counters being read.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// With a reader of numbers a turn is five times as long, and pairs a fifth as many, as it asks ten times a second.
    #[command(flatten)]
    turns: Turns,
    /// Connections open in the proxy whose connections are listed.
    #[arg(long, default_value_t = 1_000_000)]
    listed: u32,
    #[command(flatten)]
    common: Common,
}

/// Names are those of the JSON.
#[derive(Serialize)]
struct CockpitResult {
    /// Busy cycles that a connection takes more because the core counts and times it, and shows its numbers.
    cycles_added_per_connection: f64,
    /// Where that lies with 95 % confidence.
    cycles_added_interval: [f64; 2],
    /// What a reader adds to the cycles of a connection, in percent.
    cycles_added_percent_while_watched: f64,
    cycles_added_percent_while_watched_interval: [f64; 2],
    /// What a reader that lists all of a million connections adds, in percent.
    list_million_added_percent: f64,
    list_million_added_interval: [f64; 2],
    /// Connections that were listed.
    listed: u64,
    cycles_shown: f64,
    cycles_hidden: f64,
    /// Time to write all numbers, which a core does every 5 ms.
    write_us_4_servers: f64,
    write_us_1000_servers: f64,
    /// Time from the question to the whole answer of `/metrics`, the median.
    scrape_ms_1000_servers: f64,
    scrape_bytes_1000_servers: usize,
    scrapes: u64,
    pairs: u32,
    lost: u64,
    retransmitted: u64,
    failed: u64,
    valid: bool,
    invalid_because: Vec<String>,
}

const SERVERS: u32 = 1000;

/// So many times as long is a turn with a reader of numbers.
const LONGER: u32 = 5;

/// How often the numbers of a core are written, and a thousand servers are scraped, for a median.
const REPEATED: usize = 101;

pub(crate) fn run(arguments: &Arguments) -> Result<bool, BoxError> {
    // Before this thread goes to its CPU: the reader is to be on others.
    let reader = Reader::start()?;
    arguments.common.pin()?;
    let turns = &arguments.turns;
    let settings = turns.settings(turns.open);
    let host = Host::start(4, 1500)?;
    let conditions = Conditions {
        records: true,
        shown: true,
        ..Conditions::new(settings)
    };
    let (write_us_1000_servers, scrape_ms_1000_servers, scrape_bytes_1000_servers) =
        thousand(&host, &conditions, &reader)?;
    let mut shown = host.open_warm('a', &conditions)?;
    let written = Pairs::of(&pairs::take(turns.pairs, |is_shown| {
        shown.device.hide(!is_shown);
        pairs::turn_of(&mut shown, settings.length)
    }));
    shown.device.hide(false);
    reader.look_at(shown.device.watch().ok_or("a proxy that shows nothing")?)?;
    let watched = Pairs::of(&pairs::take((turns.pairs / LONGER).max(2), |is_watched| {
        let look = if is_watched { Look::Numbers } else { Look::Nothing };
        watched_turn(&reader, look, &mut shown, settings.length * LONGER)
    }));
    let now = shown.counter.now();
    let write_us_4_servers = median((0..REPEATED).map(|_| timed(|| shown.device.show(now)) * 1e6));
    let report = shown.result(&settings, &Measured::default());
    let counts = [
        ("lost", report.lost),
        ("retransmitted", report.retransmitted),
        ("failed", report.failed),
    ];
    let mut invalid_because = written.reasons_against(counts);
    invalid_because.extend(watched.reasons_against([]));
    drop(shown);
    let million = million(&host, arguments, &reader)?;
    invalid_because.extend(million.reasons_against([]));
    let listed = reader.listed();
    let scrapes = reader.finish()?;
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let hidden_cycles = written.cycles[1];
    let result = CockpitResult {
        cycles_added_per_connection: (written.ratio - 1.0) * hidden_cycles,
        cycles_added_interval: written.interval.map(|ratio| (ratio - 1.0) * hidden_cycles),
        cycles_added_percent_while_watched: percent(watched.ratio),
        cycles_added_percent_while_watched_interval: watched.interval.map(percent),
        list_million_added_percent: percent(million.ratio),
        list_million_added_interval: million.interval.map(percent),
        listed,
        cycles_shown: written.cycles[0],
        cycles_hidden: hidden_cycles,
        write_us_4_servers,
        write_us_1000_servers,
        scrape_ms_1000_servers,
        scrape_bytes_1000_servers,
        scrapes,
        pairs: turns.pairs,
        lost: report.lost,
        retransmitted: report.retransmitted,
        failed: report.failed,
        valid: invalid_because.is_empty(),
        invalid_because,
    };
    tell(&result, [&written, &watched, &million]);
    arguments.common.write(&result)?;
    Ok(result.valid)
}

fn watched_turn(reader: &Reader, look: Look, inline: &mut InlineProxy, length: Duration) -> pairs::Turn {
    reader.ask_for(look);
    let turn = pairs::turn_of(inline, length);
    reader.ask_for(Look::Nothing);
    turn
}

/// Pairs of turns of a proxy with a million open connections, while they are listed and while not.
fn million(host: &Host, arguments: &Arguments, reader: &Reader) -> Result<Pairs, BoxError> {
    let settings = arguments.turns.settings(arguments.listed);
    let conditions = Conditions {
        shown: true,
        ..Conditions::new(settings)
    };
    let mut inline = host.open_warm('d', &conditions)?;
    reader.look_at(inline.device.watch().ok_or("a proxy that shows nothing")?)?;
    Ok(Pairs::of(&pairs::take(arguments.turns.pairs, |is_listed| {
        let look = if is_listed { Look::Connections } else { Look::Nothing };
        watched_turn(reader, look, &mut inline, settings.length)
    })))
}

fn tell(result: &CockpitResult, [written, watched, million]: [&Pairs; 3]) {
    let [low, high] = result.cycles_added_interval;
    println!(
        "counts, times and the board cost {:.1} cycles per connection ({low:.1} to {high:.1}) of {:.0}; {}; {}",
        result.cycles_added_per_connection,
        result.cycles_hidden,
        written.rests_on(),
        verdict(&result.invalid_because),
    );
    let [low, high] = result.cycles_added_percent_while_watched_interval;
    println!(
        "a reader adds {:.2} % ({low:.2} to {high:.2} %), with {} scrapes; {}",
        result.cycles_added_percent_while_watched,
        result.scrapes,
        watched.rests_on(),
    );
    let [low, high] = result.list_million_added_interval;
    println!(
        "a list of all open connections adds {:.2} % ({low:.2} to {high:.2} %), with {} listed; {}",
        result.list_million_added_percent,
        result.listed,
        million.rests_on(),
    );
    println!(
        "all numbers are written in {:.1} µs with 4 servers and {:.1} µs with {SERVERS}, every 5 ms; a scrape of these takes {:.1} ms and has {} bytes",
        result.write_us_4_servers,
        result.write_us_1000_servers,
        result.scrape_ms_1000_servers,
        result.scrape_bytes_1000_servers,
    );
}

/// A core with a thousand servers: the time to write its numbers in µs, that of a scrape in ms, and the scrape's bytes.
fn thousand(host: &Host, conditions: &Conditions, reader: &Reader) -> Result<(f64, f64, usize), BoxError> {
    let server = |n: u32| {
        format!(
            "  {{ name = \"m{n:03}\", address = \"10.2.{}.{}:8080\" }},\n",
            150 + n / 250,
            1 + n % 250
        )
    };
    let servers: String = (0..SERVERS).map(server).collect();
    let adjust = |text: String| text.replacen("servers = [\n", &format!("servers = [\n{servers}"), 1);
    let mut ends = host.open_ends('c', conditions, adjust)?;
    let now = ends.clock.now();
    let write_us = median((0..REPEATED).map(|_| timed(|| ends.device.show(now)) * 1e6));
    reader.look_at(ends.device.watch().ok_or("a proxy that shows nothing")?)?;
    let mut bytes = 0;
    let mut times = Vec::new();
    for _ in 0..REPEATED {
        let start = Instant::now();
        bytes = reader.ask("/metrics")?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok((write_us, median(times), bytes))
}

/// Seconds that it takes.
fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn median(times: impl IntoIterator<Item = f64>) -> f64 {
    let mut times: Vec<f64> = times.into_iter().collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}
