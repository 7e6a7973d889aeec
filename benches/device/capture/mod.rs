//! `./build.sh bench capture`: what a capture costs the core that is captured.
//!
//! One proxy takes turns with itself: with a capture of one connection in 10 000 and with none; with a capture of every frame whose
//! reader takes a tenth of what it could, or nothing before the end, and with none. For what a capture leaves behind proxies are opened
//! anew, and each is compared with itself, before and after a capture or a pause as long: two proxies differ by more than that is. The
//! capture goes over the control socket, as the engine's does, to a reader on another CPU, which counts the frames that the file reports
//! as lost.
//!
//! What a core pays for being able to be captured is the difference to a build without: pairs of `bench cps`.

use std::time::Duration;

use benchkit::{Measured, verdict};
use serde::Serialize;

mod reader;

use crate::device::cli::{Common, Turns, TwoCpus};
use crate::device::pairs::{self, Pairs, Turn};
use crate::device::{BoxError, Conditions, Host, InlineProxy, drain};
use reader::{File, Pace, Reader};

/// What a core pays for a capture.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    turns: Turns,
    #[command(flatten)]
    common: Common,
}

/// How long a proxy runs before each turn that is measured. When a capture begins the core goes through its open connections, once; before
/// a turn without one it has stood still until the reader was done.
const BEGINNING: Duration = Duration::from_millis(20);

/// Proxies that are captured once, and as many that are not, for what a capture leaves behind.
const OPENED_ANEW: u32 = 20;

/// How long that capture is. From its order to the end of its file it takes longer, and as long is the pause in its place.
const ONCE: Duration = Duration::from_millis(50);

/// Names are those of the JSON. Percents are of the busy cycles of a connection.
#[derive(Default, Serialize)]
struct CaptureResult {
    /// What is left of a capture that is over.
    off_percent: f64,
    off_interval: [f64; 2],
    /// One connection in 10 000.
    sampled_percent: f64,
    sampled_interval: [f64; 2],
    /// Every connection, for a reader that takes a tenth of what it could.
    slow_reader_workers_percent: f64,
    slow_reader_interval: [f64; 2],
    /// The same with a reader that takes nothing before the end, so that no other CPU works meanwhile.
    stalled_reader_workers_percent: f64,
    stalled_reader_interval: [f64; 2],
    /// The same with a reader as fast as it can.
    fast_reader_workers_percent: f64,
    /// Frames that the core has lost for that, and what the files say of it.
    lost_counted: u64,
    lost_written: u64,
    frames_written: u64,
    pairs: u32,
    lost: u64,
    retransmitted: u64,
    failed: u64,
    valid: bool,
    invalid_because: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, BoxError> {
    TwoCpus::choose(arguments.common.cpu, None)?.pin_proxy()?;
    let reader = drain::apart(Reader::start)??;
    let settings = arguments.turns.settings(arguments.turns.open);
    let host = Host::start(2, 1500)?;
    let conditions = Conditions {
        shown: true,
        ..Conditions::new(settings)
    };
    let mut inline = host.open_warm('a', &conditions)?;
    let watch = inline.device.watch().ok_or("a proxy that shows nothing")?;
    reader.look_at(watch.clone())?;
    let mut bench = Bench {
        inline: &mut inline,
        reader: &reader,
        length: settings.length,
        files: File::default(),
    };
    let costs = Costs::measure(&mut bench, arguments.turns.pairs)?;
    let once = LeftBehind::measure(&host, &conditions, &reader, arguments.turns.pairs)?;
    let files = std::mem::take(&mut bench.files);
    let lost_counted = watch.captured().lost;
    let report = inline.result(&settings, &Measured::default());
    let counts = [
        ("lost", report.lost),
        ("retransmitted", report.retransmitted),
        ("failed", report.failed),
        ("lost frames that no file tells", lost_counted.abs_diff(files.lost)),
    ];
    let mut invalid_because = costs.sampled.reasons_against(counts);
    invalid_because.extend(costs.slow.reasons_against([]));
    invalid_because.extend(
        once.captured
            .reasons_against([("failed when captured once", once.failed)]),
    );
    let result = CaptureResult {
        lost_counted,
        lost_written: files.lost,
        frames_written: files.frames,
        pairs: arguments.turns.pairs,
        lost: report.lost,
        retransmitted: report.retransmitted,
        failed: report.failed,
        valid: invalid_because.is_empty(),
        invalid_because,
        off_percent: percent(once.captured.ratio / once.paused.ratio),
        off_interval: [0, 1].map(|end| percent(once.captured.interval[end] / once.paused.interval[1 - end])),
        ..costs.told()
    };
    tell(&result);
    arguments.common.write(&result)?;
    Ok(result.valid)
}

/// Pairs of turns of each kind.
struct Costs {
    sampled: Pairs,
    stalled: Pairs,
    fast: Pairs,
    slow: Pairs,
}

impl Costs {
    fn measure(bench: &mut Bench<'_>, pairs: u32) -> Result<Costs, BoxError> {
        Ok(Costs {
            sampled: bench.pairs(pairs, "sample=1/10000", Pace::Fast)?,
            stalled: bench.pairs(pairs, "", Pace::Stalled)?,
            fast: bench.pairs(pairs, "", Pace::Fast)?,
            slow: bench.pairs(pairs, "", Pace::Tenth)?,
        })
    }

    /// What they say, without what was counted.
    fn told(&self) -> CaptureResult {
        CaptureResult {
            sampled_percent: percent(self.sampled.ratio),
            sampled_interval: self.sampled.interval.map(percent),
            slow_reader_workers_percent: percent(self.slow.ratio),
            slow_reader_interval: self.slow.interval.map(percent),
            stalled_reader_workers_percent: percent(self.stalled.ratio),
            stalled_reader_interval: self.stalled.interval.map(percent),
            fast_reader_workers_percent: percent(self.fast.ratio),
            ..CaptureResult::default()
        }
    }
}

/// Turns of proxies opened anew, those behind a capture or a pause by those before it.
struct LeftBehind {
    captured: Pairs,
    paused: Pairs,
    failed: u64,
}

impl LeftBehind {
    fn measure(host: &Host, conditions: &Conditions, reader: &Reader, pairs: u32) -> Result<LeftBehind, BoxError> {
        let mut turns: [Vec<(Turn, Turn)>; 2] = [Vec::new(), Vec::new()];
        let (mut failed, mut pause) = (0, ONCE);
        // Names are unique in the process; which kind is first alternates.
        for (number, name) in (0..2 * OPENED_ANEW).zip(('b'..='z').chain('A'..='Z')) {
            let is_captured = (number + number / 2).is_multiple_of(2);
            let mut inline = host.open_warm(name, conditions)?;
            reader.look_at(inline.device.watch().ok_or("a proxy that shows nothing")?)?;
            let length = conditions.settings.length;
            let several = |inline: &mut InlineProxy| -> Vec<Turn> {
                (0..pairs.div_ceil(OPENED_ANEW))
                    .map(|_| pairs::turn_of(inline, length))
                    .collect()
            };
            let before = several(&mut inline);
            if is_captured {
                let start = inline.counter.now();
                while_captured(reader, &mut inline, ("", Pace::Fast), |inline| {
                    pairs::go_on(inline, ONCE)
                })?;
                pause = inline.counter.now() - start;
            } else {
                pairs::go_on(&mut inline, pause);
            }
            turns[usize::from(!is_captured)].extend(several(&mut inline).into_iter().zip(before));
            failed += inline.result(&conditions.settings, &Measured::default()).failed;
        }
        let [captured, paused] = turns.map(|turns| Pairs::of(&turns));
        Ok(LeftBehind {
            captured,
            paused,
            failed,
        })
    }
}

fn percent(ratio: f64) -> f64 {
    (ratio - 1.0) * 100.0
}

fn tell(result: &CaptureResult) {
    let of = |name: &str, percent: f64, [low, high]: [f64; 2]| {
        println!("{name}: {percent:.2} % ({low:.2} to {high:.2} %) of a connection's cycles");
    };
    of("what a capture leaves behind", result.off_percent, result.off_interval);
    of(
        "one connection in 10 000",
        result.sampled_percent,
        result.sampled_interval,
    );
    of(
        "all frames, for a slow reader",
        result.slow_reader_workers_percent,
        result.slow_reader_interval,
    );
    of(
        "all frames, for one that takes nothing",
        result.stalled_reader_workers_percent,
        result.stalled_reader_interval,
    );
    println!(
        "all frames, for a fast one: {:.2} %; {} frames written, {} lost, {} as the files tell; {}",
        result.fast_reader_workers_percent,
        result.frames_written,
        result.lost_counted,
        result.lost_written,
        verdict(&result.invalid_because),
    );
}

/// The proxy, and the reader of its capture.
struct Bench<'a> {
    inline: &'a mut InlineProxy,
    reader: &'a Reader,
    length: Duration,
    files: File,
}

impl Bench<'_> {
    /// Pairs of turns with a capture and without.
    fn pairs(&mut self, pairs: u32, query: &str, pace: Pace) -> Result<Pairs, BoxError> {
        let turns = pairs::try_take(pairs, |is_captured| match is_captured {
            true => self.captured(query, pace),
            false => Ok(plain(self.inline, self.length)),
        })?;
        Ok(Pairs::of(&turns))
    }

    /// A turn under a capture.
    fn captured(&mut self, query: &str, pace: Pace) -> Result<Turn, BoxError> {
        let length = self.length;
        let (turn, file) = while_captured(self.reader, self.inline, (query, pace), |inline| plain(inline, length))?;
        self.files.frames += file.frames;
        self.files.lost += file.lost;
        Ok(turn)
    }
}

/// A turn that begins a while after what came before.
fn plain(inline: &mut InlineProxy, length: Duration) -> Turn {
    pairs::go_on(inline, BEGINNING);
    pairs::turn_of(inline, length)
}

/// Does `work` under a capture, whose file is read to its end.
fn while_captured<T>(
    reader: &Reader,
    inline: &mut InlineProxy,
    (query, pace): (&str, Pace),
    work: impl FnOnce(&mut InlineProxy) -> T,
) -> Result<(T, File), BoxError> {
    reader.begin(query, pace);
    reader.turn_until_answered(inline);
    reader.answered()?;
    let done = work(inline);
    reader.end();
    reader.turn_until_answered(inline);
    Ok((done, reader.finished()?))
}
