//! One proxy that keeps records, or none, as the version of its configuration says that it goes on with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use benchkit::{CpsResult, Measured};
use proxyengine::engine::Reloader;

use crate::device::pairs::{self, Turn};
use crate::device::{BoxError, Conditions, Host, InlineProxy, Member, drain};

/// How long the core may take to go on.
const PATIENCE: Duration = Duration::from_secs(60);

/// A turn at a proxy, with records and without.
pub(crate) struct Switched {
    inline: InlineProxy,
    conditions: Conditions,
    /// It keeps records.
    has_records: bool,
    orders: Sender<bool>,
    replies: Receiver<Result<(), String>>,
    is_done: Arc<AtomicBool>,
}

impl Switched {
    /// A proxy under these conditions, which are with records, and a thread on another CPU that has it go on with another version.
    pub(crate) fn open(host: &Host, conditions: &Conditions) -> Result<Switched, BoxError> {
        let without = Conditions {
            records: false,
            ..*conditions
        };
        let text_without = host.members(1, &without)?.pop().ok_or("no proxy")?.into_text();
        let mut members = host.members(1, conditions)?;
        let (mut reloader, text) = Member::reloader(&mut members)?;
        let inline = host.open_member('a', conditions, members.pop().ok_or("no proxy")?)?;
        reloader.begin(&[inline.device.watch().ok_or("a proxy that shows nothing")?]);
        let (orders, taken) = mpsc::channel();
        let (tell, replies) = mpsc::channel();
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let work = move || {
            for has_records in taken {
                let text = if has_records { &text } else { &text_without };
                let result = go_on(&mut reloader, text).map_err(|error| error.to_string());
                // Nobody listens after the last turn.
                let _unheard = tell.send(result);
                done.store(true, Ordering::Release);
            }
        };
        drain::apart(|| thread::spawn(work))?;
        Ok(Switched {
            inline,
            conditions: *conditions,
            has_records: true,
            orders,
            replies,
            is_done,
        })
    }

    /// A turn with records or without.
    pub(crate) fn turn(&mut self, has_records: bool) -> Result<Turn, BoxError> {
        if has_records != self.has_records {
            self.go_on(has_records)?;
        }
        Ok(pairs::turn_of(&mut self.inline, self.conditions.settings.length))
    }

    /// Has the proxy go on with the other version, and with connections that have all begun with it.
    fn go_on(&mut self, has_records: bool) -> Result<(), BoxError> {
        self.is_done.store(false, Ordering::Relaxed);
        self.orders.send(has_records)?;
        let end = self.inline.counter.now() + PATIENCE;
        self.inline.run_until(end, |_| self.is_done.load(Ordering::Acquire));
        self.replies.try_recv()??;
        self.has_records = has_records;
        pairs::renew(&mut self.inline, self.conditions.settings.open);
        Ok(())
    }

    /// What must not have happened.
    pub(crate) fn result(&self) -> CpsResult {
        self.inline.result(&self.conditions.settings, &Measured::default())
    }
}

/// Has the core go on with this version.
fn go_on(reloader: &mut Reloader, text: &str) -> Result<(), BoxError> {
    let (config, difference) = reloader.config().reload_text(text, "bench")?;
    Ok(reloader.go_on_with(config, &difference)?)
}
