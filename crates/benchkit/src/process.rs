//! The load in another process: two datagram sockets in a folder that both know.
//!
//! The load says how far it is about once per millisecond and hears orders of four bytes; at its end it prints what it has
//! counted, as one line.

use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2d2::buffer::BufferPool;
use e2d2::port::Port;
use e2d2::time::{Clock, Instant};

use crate::inline::Arm;
use crate::load::{Exchange, LoadOrders, LoadStatus, LoadTotals, RemoteLoad, drive};

/// How often the load says how far it is.
const INTERVAL: Duration = Duration::from_millis(1);

/// Status as it is sent: five numbers, little-endian.
const STATUS_LEN: usize = 40;

fn bench_socket(folder: &Path) -> PathBuf {
    folder.join("bench")
}

fn load_socket(folder: &Path) -> PathBuf {
    folder.join("load")
}

/// The load's process, as the bench sees it. Dropping it ends the process.
pub struct LoadProcess {
    child: Child,
    socket: UnixDatagram,
    load: PathBuf,
    last: LoadStatus,
}

impl LoadProcess {
    /// Starts `command`, which is to call [`serve_load`] with the same folder.
    ///
    /// # Errors
    /// Of the system.
    pub fn start(command: &mut Command, folder: &Path) -> std::io::Result<LoadProcess> {
        let socket = UnixDatagram::bind(bench_socket(folder))?;
        socket.set_nonblocking(true)?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        Ok(LoadProcess {
            child,
            socket,
            load: load_socket(folder),
            last: LoadStatus::default(),
        })
    }
}

impl RemoteLoad for LoadProcess {
    fn order(&mut self, orders: LoadOrders) {
        let LoadOrders {
            is_paused,
            is_over,
            resets,
            asks_system,
        } = orders;
        let bytes = [u8::from(is_paused), u8::from(is_over), resets, u8::from(asks_system)];
        // A load that is gone shows at the end; orders are too few to fill a queue.
        let _sent = self.socket.send_to(&bytes, &self.load);
    }

    fn status(&mut self) -> LoadStatus {
        let mut bytes = [0; STATUS_LEN];
        // Only the newest counts. Nothing there is no error.
        while self.socket.recv(&mut bytes).is_ok_and(|len| len == STATUS_LEN) {
            let mut numbers = bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|number| u64::from_le_bytes(*number));
            let mut next = || numbers.next().unwrap_or_default();
            self.last = LoadStatus {
                completed: next(),
                held: next(),
                in_motion: next(),
                disturbances: next(),
                contentions: next(),
            };
        }
        self.last
    }

    fn finish(mut self) -> Result<LoadTotals, String> {
        self.order(LoadOrders {
            is_over: true,
            ..LoadOrders::default()
        });
        let mut line = String::new();
        if let Some(mut pipe) = self.child.stdout.take() {
            pipe.read_to_string(&mut line)
                .map_err(|error| format!("reading what the load counted: {error}"))?;
        }
        let status = self
            .child
            .wait()
            .map_err(|error| format!("waiting for the load: {error}"))?;
        // Whatever else the process may have printed.
        match line.lines().find(|line| line.starts_with('{')) {
            Some(line) if status.success() => LoadTotals::from_line(line),
            _ => Err(format!("the load's process has failed: {status}")),
        }
    }
}

impl Drop for LoadProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Plays the arms for the bench that started this process, until that says so; returns the line to print.
///
/// # Errors
/// Of the system, when there is no bench at `folder`.
pub fn serve_load<P: Port, L: BufferPool<Buffer = P::Buffer>>(
    mut arms: Vec<Arm<P>>,
    mut pool: L,
    clock: &Clock,
    folder: &Path,
) -> std::io::Result<String> {
    let socket = UnixDatagram::bind(load_socket(folder))?;
    socket.connect(bench_socket(folder))?;
    socket.set_nonblocking(true)?;
    let mut bench = Bench {
        socket,
        clock: *clock,
        next: Instant::ZERO,
        orders: LoadOrders::default(),
    };
    let _of_a_load_in_this_process = drive(&mut arms, &mut pool, clock, &mut bench);
    Ok(LoadTotals::of(&arms).to_line())
}

/// The bench, as the load sees it.
struct Bench {
    socket: UnixDatagram,
    clock: Clock,
    next: Instant,
    orders: LoadOrders,
}

impl Exchange for Bench {
    fn exchange(&mut self, status: LoadStatus) -> LoadOrders {
        let now = self.clock.now();
        if now < self.next {
            return self.orders;
        }
        self.next = now + INTERVAL;
        let mut bytes = [0; STATUS_LEN];
        let LoadStatus {
            completed,
            held,
            in_motion,
            disturbances,
            contentions,
        } = status;
        let numbers = [completed, held, in_motion, disturbances, contentions];
        for (place, number) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
            *place = number.to_le_bytes();
        }
        match self.socket.send(&bytes) {
            Ok(_) => {}
            // The bench does not listen at the moment; it hears the next one.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            // Nobody is left to work for.
            Err(_) => self.orders.is_over = true,
        }
        let mut orders = [0; 4];
        while self.socket.recv(&mut orders).is_ok_and(|len| len == orders.len()) {
            self.orders = LoadOrders {
                is_paused: orders[0] != 0,
                is_over: orders[1] != 0,
                resets: orders[2],
                asks_system: orders[3] != 0,
            };
        }
        self.orders
    }
}
