//! `./build.sh bench capture`: what a capture costs the core that is captured.
//!
//! One proxy takes turns with itself: with a capture of one connection in 10 000 and with none; with a capture of every frame whose
//! reader takes a tenth of what it could, or nothing before the end, and with none; behind a capture, and behind a pause as long. The
//! capture goes over the control socket, as the engine's does, to a reader on another CPU, which counts the frames that the file reports
//! as lost.
//!
//! What a core pays for being able to be captured is the difference to a build without: pairs of `bench cps`.

use std::time::Duration;

use benchkit::{CpsSettings, Measured, verdict};
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

/// So many times more pairs, of turns half as long, where the cost is near the noise.
const FINE: u32 = 4;

/// How long a capture is before a turn without one, for what it leaves behind. From its order to the end of its file it takes longer, and
/// as long is the pause in its place.
const ONCE: Duration = Duration::from_millis(50);

/// Names are those of the JSON. Percents are of the busy cycles of a connection.
#[derive(Default, Serialize)]
struct CaptureResult {
    /// What is left of a capture that is over, when all connections of its time are.
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
        settings,
        files: File::default(),
    };
    let costs = Costs::measure(&mut bench, arguments.turns.pairs)?;
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
    invalid_because.extend(costs.off.reasons_against([]));
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
        ..costs.told()
    };
    tell(&result);
    arguments.common.write(&result)?;
    Ok(result.valid)
}

/// Pairs of turns of each kind.
struct Costs {
    off: Pairs,
    sampled: Pairs,
    stalled: Pairs,
    fast: Pairs,
    slow: Pairs,
}

impl Costs {
    fn measure(bench: &mut Bench<'_>, pairs: u32) -> Result<Costs, BoxError> {
        let length = bench.settings.length;
        Ok(Costs {
            off: bench.left_behind(pairs)?,
            sampled: bench.pairs((FINE * pairs, length / 2), "sample=1/10000", Pace::Fast)?,
            stalled: bench.pairs((pairs, length), "", Pace::Stalled)?,
            fast: bench.pairs((pairs, length), "", Pace::Fast)?,
            slow: bench.pairs((pairs, length), "", Pace::Tenth)?,
        })
    }

    /// What they say, without what was counted.
    fn told(&self) -> CaptureResult {
        CaptureResult {
            off_percent: percent(self.off.ratio),
            off_interval: self.off.interval.map(percent),
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
    settings: CpsSettings,
    files: File,
}

impl Bench<'_> {
    /// So many pairs of turns, so long, with a capture and without.
    fn pairs(&mut self, (pairs, length): (u32, Duration), query: &str, pace: Pace) -> Result<Pairs, BoxError> {
        let turns = pairs::try_take(pairs, |is_captured| match is_captured {
            true => self.while_captured(query, pace, |inline| plain(inline, length)),
            false => Ok(plain(self.inline, length)),
        })?;
        Ok(Pairs::of(&turns))
    }

    /// Pairs of turns behind a capture of every frame and behind a pause, of connections that have all begun after it.
    fn left_behind(&mut self, pairs: u32) -> Result<Pairs, BoxError> {
        let mut pause = ONCE;
        let turns = pairs::try_take(FINE * pairs, |is_captured| {
            if is_captured {
                let start = self.inline.counter.now();
                self.while_captured("", Pace::Fast, |inline| pairs::go_on(inline, ONCE))?;
                pause = self.inline.counter.now() - start;
            } else {
                pairs::go_on(self.inline, pause);
            }
            pairs::renew(self.inline, self.settings.open);
            Ok::<_, BoxError>(pairs::turn_of(self.inline, self.settings.length / 2))
        })?;
        Ok(Pairs::of(&turns))
    }

    /// Does `work` under a capture, whose file is read to its end.
    fn while_captured<T>(
        &mut self,
        query: &str,
        pace: Pace,
        work: impl FnOnce(&mut InlineProxy) -> T,
    ) -> Result<T, BoxError> {
        self.reader.begin(query, pace);
        self.reader.turn_until_answered(self.inline);
        self.reader.answered()?;
        let done = work(self.inline);
        self.reader.end();
        self.reader.turn_until_answered(self.inline);
        let file = self.reader.finished()?;
        self.files.frames += file.frames;
        self.files.lost += file.lost;
        Ok(done)
    }
}

/// A turn that begins a while after what came before.
fn plain(inline: &mut InlineProxy, length: Duration) -> Turn {
    pairs::go_on(inline, BEGINNING);
    pairs::turn_of(inline, length)
}
