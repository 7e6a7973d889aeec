//! Captures: `ctl capture start` asks for one over the control socket, and gets it as a pcapng file, piece by piece.
//!
//! ```text
//!  cores ── taps ──► Ledger ─► pcapng ─► the answer's body ─► ctl ─► a file, Wireshark
//! ```
//!
//! One thread takes what all cores have said ([`splice::capture`]), puts it together by connection (`ledger`) and sends it. While
//! whoever reads is slow it waits, the cores' rings fill up, and what finds no room is counted there: no core waits for anybody.
//!
//! There is one capture at a time. It ends when its reader has had enough or goes, after a time, after a number of frames, or with
//! the engine.

mod connection;
mod groups;
mod ledger;
mod packets;
mod pcapng;
mod places;
mod words;

pub use ledger::Totals;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant as Time};

use control::http::{Answer, Body};
use netfcts::record::Cause;
use splice::capture::{CaptureReader, Choice, Extent, capture_ring};
use splice::ids::{ListenerId, RuleId};
use splice::visit::ConnectionFilter;

use self::ledger::{Ending, Ledger, RuleNames};
use self::places::Bounds;
use crate::commands::{Purpose, Visit};
use crate::config::Config;
use crate::engine::{CaptureClaim, Watch};
use crate::status::connections::Refusal;
use crate::status::query;

/// How long the thread rests when cores have nothing new to say.
const PAUSE: Duration = Duration::from_millis(5);

/// Places that are looked at for open connections between two looks at what has come: some 30 ms.
const PLACES: u32 = 4096;

/// Bytes of a frame that are copied at most, unless something else is asked for: all headers.
const SNAPLEN: u16 = 128;

/// Less has no place for the headers that frames are told apart by.
const LEAST_SNAPLEN: u16 = 96;

/// Groups of a connection that are kept until its end, unless something else is asked for.
const LAST: usize = 64;

/// As many as are kept at most.
const MOST_LAST: usize = 4096;

/// A capture that is asked for.
#[derive(Clone, Debug)]
struct Wish {
    choice: Choice,
    named: Named,
    extent: Extent,
    ending: Ending,
    duration: Option<Duration>,
    count: u64,
}

/// What a capture asks for by names, for which cores have numbers.
#[derive(Clone, Debug, Default)]
struct Named {
    listener: Option<String>,
    server: Option<String>,
    /// A rule of the listener that is chosen, by its name or its place.
    rule: Option<String>,
}

impl Named {
    /// Looks up the numbers.
    ///
    /// # Errors
    /// A sentence that says what there is not.
    fn look_up(&self, config: &Config, choice: &mut Choice) -> Result<(), String> {
        let (listener, server) = (self.listener.as_deref(), self.server.as_deref());
        choice.listener = listener.map(|name| query::listener(name, config)).transpose()?;
        choice.server = server.map(|name| query::server(name, config)).transpose()?;
        let rule = self.rule.as_deref();
        choice.rule = rule.map(|name| named_rule(name, choice.listener, config)).transpose()?;
        Ok(())
    }

    /// Why a capture cannot go on with this configuration, if it cannot: what it asks for has another number, or none.
    fn reason_to_end(&self, config: &Config, choice: &Choice) -> Option<String> {
        let mut now = *choice;
        let is_there = self.look_up(config, &mut now);
        let numbers = |choice: &Choice| (choice.listener, choice.server, choice.rule);
        let is_the_same = numbers(&now) == numbers(choice);
        let missing = is_there
            .err()
            .or_else(|| (!is_the_same).then(|| "a name stands for something else".to_owned()));
        missing.map(|sentence| format!("ended by a reload: {sentence}"))
    }
}

impl Wish {
    /// Reads the part of a URL behind the question mark.
    ///
    /// # Errors
    /// A sentence that names what is wrong.
    fn read(query: &str, config: &Config) -> Result<Self, String> {
        let mut wish = Self {
            choice: Choice::default(),
            named: Named::default(),
            extent: Extent {
                snaplen: SNAPLEN,
                payload: false,
            },
            ending: Ending {
                causes: Vec::new(),
                slower_than: None,
                last: LAST,
            },
            duration: None,
            count: u64::MAX,
        };
        query::read(query, &["cause"], |key, value| wish.take(key, value))?;
        wish.named.look_up(config, &mut wish.choice)?;
        Ok(wish)
    }

    fn take(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "client" => self.choice.client = Some(query::prefix(value)?),
            "listener" => self.named.listener = Some(value.to_owned()),
            "server" => self.named.server = Some(value.to_owned()),
            "rule" => self.named.rule = Some(value.to_owned()),
            "sample" => {
                let of = value.strip_prefix("1/").unwrap_or(value);
                let expected = || format!("`sample={value}`: expected one of how many, such as 1/1000");
                self.choice.one_in = of.parse::<NonZeroU32>().map_err(|_| expected())?;
            }
            "cause" => self.ending.causes.extend(causes(value)?),
            "slower_than" => self.ending.slower_than = Some(time(key, value)?),
            "last" => self.ending.last = query::number::<usize>(key, value)?.clamp(1, MOST_LAST),
            "snaplen" => self.extent.snaplen = query::number::<u16>(key, value)?.max(LEAST_SNAPLEN),
            "payload" if value.is_empty() => self.extent.payload = true,
            "payload" => return Err(format!("`payload={value}`: it takes no value")),
            "duration" => self.duration = Some(time(key, value)?),
            "count" => self.count = query::number(key, value)?,
            _ => {
                return Err(format!(
                    "`{key}`: expected client, listener, server, rule, sample, cause, slower_than, last, snaplen, payload, \
                     duration or count"
                ));
            }
        }
        Ok(())
    }
}

fn named_rule(name: &str, listener: Option<ListenerId>, config: &Config) -> Result<RuleId, String> {
    let Some(listener) = listener else {
        return Err("`rule`: expected `listener`, too, as rules are numbered there".to_owned());
    };
    let listener = &config.listeners()[listener.index()];
    let mut rules = listener.rules.iter().enumerate();
    let rule = rules.find(|(place, rule)| rule.shown_as(*place) == name);
    let rule = rule.ok_or_else(|| format!("listener `{}` has no rule `{name}`", listener.name))?;
    Ok(rule.1.id)
}

/// What the rules of all listeners are called.
fn rule_names(config: &Config) -> RuleNames {
    let rules = config
        .listeners()
        .iter()
        .flat_map(|listener| listener.rules.iter().enumerate());
    rules.map(|(place, rule)| (rule.id, rule.shown_as(place))).collect()
}

fn time(key: &str, value: &str) -> Result<Duration, String> {
    humantime_serde::re::humantime::parse_duration(value)
        .map_err(|error| format!("`{key}={value}`: {error}; expected a time such as 200ms"))
}

/// The causes that a word stands for: one by its name in records, however written, or a group of them.
fn causes(word: &str) -> Result<Vec<Cause>, String> {
    let plain = |text: &str| text.replace(['_', '-'], "").to_ascii_lowercase();
    let wanted = plain(word);
    Ok(match wanted.as_str() {
        "reset" => Cause::ALL.into_iter().filter(|cause| cause.is_reset()).collect(),
        "timeout" => Cause::ALL
            .into_iter()
            .filter(|cause| cause.name().ends_with("Timeout"))
            .collect(),
        _ => {
            let cause = Cause::ALL.into_iter().find(|cause| plain(cause.name()) == wanted);
            vec![cause.ok_or_else(|| {
                let names: Vec<&str> = Cause::ALL.iter().map(|cause| cause.name()).collect();
                format!("`cause={word}`: expected reset, timeout or one of {}", names.join(", "))
            })?]
        }
    })
}

/// A capture that has begun: all cores have their taps.
pub struct Capture {
    watch: Watch,
    /// That whose names are in use.
    config: Arc<Config>,
    /// What is asked for by names, and their numbers.
    named: Named,
    choice: Choice,
    ledger: Ledger,
    duration: Option<Duration>,
    /// Cores, and the places there, whose open connections are still to be looked at.
    open: VecDeque<(usize, u32)>,
    has_taps: bool,
    /// What the engine's metrics know of it.
    noted: Totals,
    /// Until the capture is over.
    claim: Option<CaptureClaim>,
}

/// Sends frames of clients to whoever may end their connections, too.
pub(crate) fn answer(query: &str, watch: &Watch) -> Answer {
    match begin(query, watch) {
        Ok(capture) => {
            log::info!("changed by ctl: capture {query}");
            Answer::stream("application/x-pcapng", move |body| capture.send_to(body))
        }
        Err((status, sentence)) => Answer::refusal(status, &format!("{sentence}\n")),
    }
}

/// Begins a capture.
///
/// # Errors
/// What is asked for is wrong (400), another capture runs (409), or a core does not come round (503).
pub fn begin(query: &str, watch: &Watch) -> Result<Capture, Refusal> {
    let config = watch.config();
    let wish = Wish::read(query, &config).map_err(|sentence| (400, sentence))?;
    let claim = watch.claim_capture();
    let claim = claim.ok_or_else(|| (409, "a capture runs already, and there is one at a time".to_owned()))?;
    let capacity = config.capacity();
    let mut readers: Vec<(u32, CaptureReader)> = Vec::new();
    for (index, core) in watch.cores().enumerate() {
        let places = (capacity.connections, capacity.time_wait);
        let (tap, reader) = capture_ring(wish.choice, wish.extent, places.0, places.1);
        if let Err(error) = watch.capture(index, Some(tap)) {
            (0..=index).for_each(|index| drop(watch.capture(index, None)));
            return Err((503, format!("core {core}: {error}")));
        }
        readers.push((core.0.into(), reader));
    }
    let ports: Vec<String> = config.ports().iter().map(|port| port.name.clone()).collect();
    let open = (0..readers.len()).map(|core| (core, 0)).collect();
    let comment = format!("ctl capture start {query}");
    let ledger = Ledger::new(
        readers,
        (wish.ending, Bounds::CAPTURE),
        (watch.names(), rule_names(&config), &ports),
        (comment.trim_end(), wish.extent.snaplen),
        (watch.now(), wish.count),
    );
    Ok(Capture {
        watch: watch.clone(),
        config,
        named: wish.named,
        choice: wish.choice,
        ledger,
        duration: wish.duration,
        open,
        has_taps: true,
        noted: Totals::default(),
        claim: Some(claim),
    })
}

impl Capture {
    /// Sends the file until the capture is over.
    pub fn send_to(mut self, mut body: Body) {
        let run = self.run(&mut body);
        self.take_taps();
        self.note_totals();
        drop(self.claim.take());
        let sent = run.and_then(|()| body.finish());
        let Totals {
            written,
            lost,
            forgotten_frames,
            forgotten,
        } = self.ledger.totals();
        let end = sent.map_or_else(|error| format!(", and its reader is gone: {error}"), |()| String::new());
        let kept = format!("{forgotten_frames} of them kept and forgotten, of {forgotten} connections");
        log::info!("capture: {written} frames written, {lost} lost, {kept}{end}");
    }

    fn run(&mut self, body: &mut Body) -> std::io::Result<()> {
        let began = Time::now();
        let mut why;
        loop {
            why = self.follow_reload();
            if why.is_some() {
                break;
            }
            self.choose_open();
            let taken = self.ledger.take();
            self.note_totals();
            self.flush(body)?;
            let is_over = self.duration.is_some_and(|most| began.elapsed() >= most);
            if is_over || self.ledger.is_full() || self.ledger.is_abandoned() || body.is_enough() {
                break;
            }
            if taken == 0 {
                std::thread::sleep(PAUSE);
            }
        }
        if self.ledger.is_abandoned() {
            // The cores have ended, and their taps with them.
            self.has_taps = false;
        }
        self.take_taps();
        // No core captures: another may begin, before whoever reads knows that this one is over.
        drop(self.claim.take());
        while self.ledger.take() > 0 {
            self.flush(body)?;
        }
        self.ledger.finish(self.watch.now(), why.as_deref());
        self.flush(body)
    }

    /// Goes on with what a reload has left; why it cannot, if so. What has come before keeps the names of its time.
    fn follow_reload(&mut self) -> Option<String> {
        let config = self.watch.config();
        if Arc::ptr_eq(&config, &self.config) {
            return None;
        }
        let why = self.named.reason_to_end(&config, &self.choice);
        match &why {
            Some(sentence) => log::info!("capture: {sentence}"),
            None => self.ledger.rename(self.watch.names(), rule_names(&config)),
        }
        self.config = config;
        why
    }

    /// Tells what has become of frames since this was told last.
    fn note_totals(&mut self) {
        let totals = self.ledger.totals();
        if totals != self.noted {
            self.watch.note_captured(totals - self.noted);
            self.noted = totals;
        }
    }

    fn flush(&mut self, body: &mut Body) -> std::io::Result<()> {
        let result = body.send(&self.ledger.out);
        self.ledger.out.clear();
        result
    }

    /// Has a core look at some of the connections that were there before.
    fn choose_open(&mut self) {
        let Some((core, first)) = self.open.pop_front() else {
            return;
        };
        let visit = Visit {
            purpose: Purpose::Capture,
            places: first..first.saturating_add(PLACES),
            filter: ConnectionFilter::default(),
            most: u32::MAX,
        };
        if let Ok(visited) = self.watch.visit(core, visit, |_| {})
            && let Some(next) = visited.next
        {
            self.open.push_front((core, next));
        }
    }

    /// Takes the taps away. One of a core that does not come round goes with that core.
    fn take_taps(&mut self) {
        if std::mem::take(&mut self.has_taps) {
            for core in 0..self.watch.cores().count() {
                drop(self.watch.capture(core, None));
            }
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.take_taps();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_named_one_by_one_or_together() {
        let resets = causes("reset").expect("a group");
        let closes = [Cause::Unknown, Cause::ActiveClose, Cause::PassiveClose];
        for cause in Cause::ALL {
            assert_ne!(resets.contains(&cause), closes.contains(&cause), "{cause:?}");
        }
        for name in ["ServerRefused", "server_refused", "server-refused"] {
            assert_eq!(causes(name), Ok(vec![Cause::ServerRefused]), "{name}");
        }
        assert!(causes("timeout").expect("a group").contains(&Cause::IdleTimeout));
        let refusal = causes("wonder").expect_err("no cause");
        assert!(refusal.contains("reset, timeout or one of Unknown,"), "{refusal}");
    }
}
