//! `./build.sh bench reload`: what connections and cores notice of other versions of the configuration.
//!
//! Two cores with their load inline, as in `bench scaling`, paced at 80 % of what each completed at full speed a moment before.
//! Servers, weights, rules and a listener come and go; two servers and the listener of all connections stay. Then 10 000
//! servers come, and one of each of 100 pools is another, while the load rests: the main thread of an engine has a CPU of its own.

use std::thread;
use std::time::{Duration, Instant};

use benchkit::CpsSettings;
use proxyengine::engine::Reloader;
use serde::Serialize;

mod seat;
mod versions;

use crate::device::cli::{Common, TwoCpus};
use crate::device::proxy::Reloads;
use crate::device::{BoxError, Conditions, Host, Member, Rules};
use seat::{Ending, Seat};

/// Reloads under load.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Connections open at once on each core.
    #[arg(long, default_value_t = 10_000)]
    open: u32,
    /// Reloads.
    #[arg(long, default_value_t = 1_000)]
    reloads: u32,
    /// Time from the end of a reload to the next, in milliseconds.
    #[arg(long, default_value_t = 20)]
    pause: u64,
    /// CPU of the second proxy; by default the first, and the first proxy's is the last.
    #[arg(long)]
    second_cpu: Option<usize>,
    #[command(flatten)]
    common: Common,
}

/// Names are those of the JSON.
#[derive(Serialize)]
struct ReloadResult {
    /// Connections that did not end as they should, of all.
    failed: u64,
    /// Of these, those that were reset or refused.
    reset: u64,
    /// Rounds with an order that used more than 50 µs of their thread's CPU time, and the longest of all.
    rounds_over_50us_because: u64,
    longest_us: f64,
    /// Of 100 such rounds one uses more.
    p99_us: f64,
    rounds_with_an_order: u64,
    /// From the text to the last core's word that it uses the version, under load.
    ms_to_last_ack_p50: f64,
    ms_to_last_ack_p99: f64,
    /// The same where one server in each of 100 pools of 100 is another, the load at rest: the median of five.
    ms_to_last_ack_10000_servers: f64,
    /// The same where all 10 000 are new.
    ms_to_build: f64,
    /// The longest round of these.
    longest_us_10000_servers: f64,
    /// Resident memory when nothing of the past is left, by that when a tenth of the reloads was over.
    memory_growth_percent: f64,
    reloads: u32,
    connections: u64,
    connections_per_second: f64,
    /// Connections a second by the most that there were.
    share_of_maximum: f64,
    lost: u64,
    retransmitted: u64,
    valid: bool,
    invalid_because: Vec<String>,
}

/// Of each core's maximum.
const SHARE: f64 = 0.8;

/// What must not be exceeded: milliseconds of a reload and of building 10 000 servers, and per cent of memory.
const MOST_MS: f64 = 100.0;
const MOST_MS_TO_BUILD: f64 = 2_000.0;
const MOST_GROWTH: f64 = 1.0;

/// How long the last connection to what is past may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Changes of a hundred servers of ten thousand.
const CHANGED: u16 = 5;

/// Reloads between two looks for what is past.
const FORGETS: u32 = 10;

/// Returns whether the result is valid and within its limits.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, BoxError> {
    if arguments.reloads < 10 {
        return Err("expected at least 10 --reloads".into());
    }
    let settings = CpsSettings {
        open: arguments.open,
        ..CpsSettings::default()
    };
    let conditions = Conditions {
        rules: Rules::Pool,
        servers: 8,
        shown: true,
        ..Conditions::new(settings)
    };
    let cpus = TwoCpus::choose(arguments.common.cpu, arguments.second_cpu)?;
    let host = Host::start_on(2, 1500, &[cpus.proxy, cpus.load])?;
    let mut members = host.members(2, &conditions)?;
    let (mut reloader, text) = Member::reloader(&mut members)?;
    let (mut seats, mut watches) = (Vec::new(), Vec::new());
    for ((member, name), cpu) in members.into_iter().zip('a'..).zip([cpus.proxy, cpus.load]) {
        // One after the other: each opens rings.
        let (seat, watch) = Seat::take(member, name, cpu, conditions)?;
        seats.push(seat);
        watches.push(watch);
    }
    reloader.begin(&watches);
    let most = maximum(&seats)?;
    for (seat, most) in seats.iter().zip(&most) {
        seat.pace(most * SHARE)?;
    }
    let (mut times, memory_growth_percent) = under_load(&mut reloader, &text, arguments)?;
    for seat in &seats {
        seat.rest()?;
    }
    let mut at_rest = |generation: u16| timed(&mut reloader, &versions::large(&text, generation));
    let (ms_to_build, _unchanged) = (at_rest(0)?, at_rest(0)?);
    let mut changed = (1..=CHANGED).map(at_rest).collect::<Result<Vec<_>, _>>()?;
    changed.sort_by(f64::total_cmp);
    let ms_to_last_ack = changed[changed.len() / 2];
    let endings = seats.into_iter().map(Seat::end).collect::<Result<Vec<_>, _>>()?;
    times.sort_by(f64::total_cmp);
    let of_times = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    let result = ReloadResult {
        ms_to_last_ack_p50: of_times(0.5),
        ms_to_last_ack_p99: of_times(0.99),
        ms_to_last_ack_10000_servers: ms_to_last_ack,
        ms_to_build,
        memory_growth_percent,
        reloads: arguments.reloads,
        ..ReloadResult::of(&endings, most.iter().sum())
    };
    result.print();
    arguments.common.write(&result)?;
    Ok(result.is_good())
}

/// What each core completes in a second, both at once.
fn maximum(seats: &[Seat]) -> Result<Vec<f64>, BoxError> {
    let length = Duration::from_secs(2);
    for seat in seats {
        seat.hurry(length)?;
    }
    seats.iter().map(Seat::per_second).collect()
}

/// All reloads, and afterwards all that is past forgotten: milliseconds of each, and by how many per cent memory has grown.
fn under_load(reloader: &mut Reloader, text: &str, arguments: &Arguments) -> Result<(Vec<f64>, f64), BoxError> {
    let (mut times, mut base) = (Vec::new(), 0.0);
    for number in 1..=arguments.reloads {
        times.push(timed(reloader, &versions::version(text, number))?);
        if number % FORGETS == 0 {
            reloader.forget_past()?;
        }
        if number == arguments.reloads / 10 {
            forget_all(reloader)?;
            base = resident()?;
        }
        thread::sleep(Duration::from_millis(arguments.pause));
    }
    timed(reloader, text)?;
    forget_all(reloader)?;
    Ok((times, (resident()? / base - 1.0) * 100.0))
}

/// Waits until no connection names what is past.
fn forget_all(reloader: &mut Reloader) -> Result<(), BoxError> {
    let began = Instant::now();
    while reloader.config().has_past() {
        if began.elapsed() > PATIENCE {
            return Err("connections still name what is past".into());
        }
        reloader.forget_past()?;
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Milliseconds until all cores use this version.
fn timed(reloader: &mut Reloader, text: &str) -> Result<f64, BoxError> {
    let began = Instant::now();
    let (config, difference) = reloader.config().reload_text(text, "bench")?;
    reloader.go_on_with(config, &difference)?;
    Ok(began.elapsed().as_secs_f64() * 1e3)
}

/// Pages of this process in memory: the second field of proc_pid_statm(5).
fn resident() -> Result<f64, BoxError> {
    let fields = std::fs::read_to_string("/proc/self/statm")?;
    Ok(fields.split(' ').nth(1).ok_or("no second field in statm")?.parse()?)
}

impl ReloadResult {
    /// What the cores say.
    fn of(endings: &[Ending], most: f64) -> Self {
        let sum = |of: fn(&Ending) -> u64| endings.iter().map(of).sum::<u64>();
        let mut rounds = Reloads::default().rounds;
        endings.iter().for_each(|one| rounds += &one.reloads.rounds);
        let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
        let per_second: f64 = endings.iter().map(|one| one.per_second).sum();
        let mut result = ReloadResult {
            failed: sum(|one| one.failed),
            reset: sum(|one| one.reset),
            rounds_over_50us_because: sum(|one| one.reloads.over_50us),
            longest_us: endings
                .iter()
                .map(|one| micros(one.reloads.longest))
                .fold(0.0, f64::max),
            p99_us: rounds.value_at_quantile(0.99) as f64 / 1e3,
            rounds_with_an_order: rounds.len(),
            ms_to_last_ack_p50: 0.0,
            ms_to_last_ack_p99: 0.0,
            ms_to_last_ack_10000_servers: 0.0,
            ms_to_build: 0.0,
            longest_us_10000_servers: endings
                .iter()
                .map(|one| micros(one.at_rest.longest))
                .fold(0.0, f64::max),
            memory_growth_percent: 0.0,
            reloads: 0,
            connections: sum(|one| one.completed),
            connections_per_second: per_second,
            share_of_maximum: per_second / most,
            lost: sum(|one| one.lost),
            retransmitted: sum(|one| one.retransmitted),
            valid: true,
            invalid_because: Vec::new(),
        };
        let counts = [("lost", result.lost), ("retransmitted", result.retransmitted)];
        let wrong = counts.into_iter().filter(|(_, count)| *count > 0);
        result.invalid_because = wrong.map(|(name, count)| format!("{name} is {count}")).collect();
        if (result.share_of_maximum / SHARE - 1.0).abs() > 0.1 {
            let share = result.share_of_maximum;
            result
                .invalid_because
                .push(format!("the load was {share:.2} of the maximum"));
        }
        result.valid = result.invalid_because.is_empty();
        result
    }

    fn is_good(&self) -> bool {
        self.valid
            && self.failed == 0
            && self.p99_us <= 50.0
            && self.ms_to_last_ack_10000_servers <= MOST_MS
            && self.ms_to_build <= MOST_MS_TO_BUILD
            && self.memory_growth_percent.abs() <= MOST_GROWTH
    }

    fn print(&self) {
        println!(
            "{} reloads at {:.0} connections/s ({:.2} of the maximum): of {} connections {} failed, {} of them reset; {} of {} rounds \
             with an order over 50 us, p99 {:.1} us, longest {:.1} us; {:.1} ms to the last core (p99 {:.1}); 10 000 servers: {:.0} ms \
             to build, {:.0} ms to change 100, longest round {:.0} us; memory {:+.2} %; {}",
            self.reloads,
            self.connections_per_second,
            self.share_of_maximum,
            self.connections,
            self.failed,
            self.reset,
            self.rounds_over_50us_because,
            self.rounds_with_an_order,
            self.p99_us,
            self.longest_us,
            self.ms_to_last_ack_p50,
            self.ms_to_last_ack_p99,
            self.ms_to_build,
            self.ms_to_last_ack_10000_servers,
            self.longest_us_10000_servers,
            self.memory_growth_percent,
            if self.valid {
                "valid".to_owned()
            } else {
                format!("NOT VALID: {}", self.invalid_because.join("; "))
            },
        );
    }
}
