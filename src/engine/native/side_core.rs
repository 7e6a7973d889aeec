//! A core of its own for the device's sides of software NICs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use e2d2::native::Eal;
use e2d2::scheduler::{IdleMode, Priority, Scheduler, pin_current_thread};
use e2d2::time::Clock;

use super::queue::Side;
use crate::config::CoreId;
use crate::engine::machine::{DeviceSide, MachineError};
use crate::engine::sides::Sides;
use crate::privileges;

/// How long after its order to end it goes on at most for workers that have not ended.
const LINGER: Duration = Duration::from_secs(1);

/// A thread that runs them. Dropping it ends it, when the workers have ended and all they have sent is out.
pub(super) struct SideCore {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SideCore {
    /// Starts the thread on `core` and waits until it runs.
    pub(super) fn start(core: CoreId, sides: Vec<Side>, idle: IdleMode, eal: &Arc<Eal>) -> Result<Self, MachineError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let (eal, stopped) = (Arc::clone(eal), Arc::clone(&stop));
        let body = move || {
            privileges::enter_plain_thread();
            let ready = pin_current_thread(core.index())
                .map_err(|error| error.to_string())
                .and_then(|()| eal.register_thread().map_err(|error| error.to_string()));
            match ready {
                Ok(guard) => {
                    _ = tell.send(Ok(()));
                    run(sides, idle, &stopped);
                    drop(guard);
                }
                Err(error) => _ = tell.send(Err(error)),
            }
        };
        let thread = thread::Builder::new().name(format!("nic-{core}")).spawn(body)?;
        let side = Self {
            stop,
            thread: Some(thread),
        };
        match told.recv() {
            Ok(Ok(())) => Ok(side),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(format!("the thread of core {core} for software NICs has ended").into()),
        }
    }
}

fn run(sides: Vec<Side>, idle: IdleMode, stop: &AtomicBool) {
    let sides = sides
        .into_iter()
        .map(|side| Box::new(side) as Box<dyn DeviceSide>)
        .collect();
    let Some(sides) = Sides::new(sides) else { return };
    let mut scheduler = Scheduler::new(idle);
    scheduler.add(Priority::PACKETS, sides.clone());
    let (is_over, mut leave_by) = (AtomicBool::new(false), None);
    scheduler.run(&Clock::new(), &is_over, |now, _| {
        if stop.load(Ordering::Relaxed) {
            let leave_by = *leave_by.get_or_insert_with(|| now + LINGER);
            is_over.store(!sides.is_needed() || now >= leave_by, Ordering::Relaxed);
        }
    });
}

impl Drop for SideCore {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of it has been printed; there is nothing left to do about it.
            let _ = thread.join();
        }
    }
}
