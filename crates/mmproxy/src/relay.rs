//! Moving bytes from one socket to another.
//!
//! A [`Direction`] reads into a buffer that all sessions of a worker share and writes at once, so an idle session holds
//! no buffer. Only what the other side does not take is kept, and nothing more is read until that is gone. Once a
//! direction has shown to be bulk it moves through a pipe with `splice(2)`; the pipe is borrowed from the worker's pool
//! while bytes are under way and given back when the source is dry, so an idle session holds two descriptors.
//!
//! Sockets are registered once, edge-triggered. What an [`Endpoint`] can do is remembered until the kernel says otherwise:
//! a read that returns less than was asked for has emptied the socket (epoll(7), question 9).

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use rustix::pipe::{PipeFlags, SpliceFlags};

/// Bytes read at once. Measured: at 256 KiB copying is close to `splice`, at 16–64 KiB it costs twice the CPU.
pub const SCRATCH: usize = 256 * 1024;

/// Capacity asked for a pipe; the kernel's limit for users without privilege.
const PIPE: usize = 1024 * 1024;

/// A read of this size counts as bulk.
const BULK_READ: usize = 64 * 1024;

/// So many of them in a row, and the direction is spliced.
const BULK_READS: u8 = 8;

/// Rounds of one direction before others get their turn.
const BUDGET: u32 = 8;

/// Buffers that are kept for the next user.
const POOL: usize = 64;

/// Bytes that all sessions of a worker may hold for targets that do not take them, before reads get smaller.
const HELD: usize = 64 << 20;

/// Size of reads when that much is held: ten thousand slow readers then cost 160 MB more, not 2.6 GB. And size of reads
/// while nobody knows whether there is a target that takes anything.
pub const FRUGAL_READ: usize = 16 * 1024;

/// One socket of a session.
#[derive(Debug)]
pub struct Endpoint {
    /// The socket.
    pub fd: OwnedFd,
    /// There may be something to read.
    pub readable: bool,
    /// There may be room to write.
    pub writable: bool,
    /// The peer has closed its side: read until the end, however short the reads.
    pub ended: bool,
    /// The kernel was asked to report room for writing. It is not while nothing waits for it: a fresh registration
    /// would report it at once.
    pub watches_room: bool,
    /// `TCP_NODELAY` is still to be set. The first write leaves at once without it, and many connections have no second.
    pub nodelay_is_due: bool,
}

impl Endpoint {
    /// A socket of which nothing is known.
    pub fn new(fd: OwnedFd) -> Self {
        Endpoint {
            fd,
            readable: true,
            writable: true,
            ended: false,
            watches_room: false,
            nodelay_is_due: false,
        }
    }

    /// Before any write but the first: small pieces shall not wait for the acknowledgement of earlier ones.
    fn prepare_write(&mut self) {
        if self.nodelay_is_due {
            self.nodelay_is_due = false;
            // It fails for sockets that have no such delay.
            let _ = rustix::net::sockopt::set_tcp_nodelay(&self.fd, true);
        }
    }
}

/// A pipe that is empty between uses.
#[derive(Debug)]
struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
    capacity: usize,
}

/// What sessions of one worker share.
#[derive(Debug)]
pub struct Pool {
    /// The buffer that every read goes to.
    pub scratch: Vec<u8>,
    pipes: Vec<Pipe>,
    /// Pipes there are, lent ones included, and how many there may be.
    pipes_made: usize,
    max_pipes: usize,
    /// Bytes in the `pending` of all directions.
    held: usize,
    buffers: Vec<Vec<u8>>,
    splice: bool,
    /// How many directions were handed to splice.
    pub spliced: u64,
}

impl Pool {
    /// An empty pool.
    pub fn new(splice: bool) -> Self {
        Pool {
            scratch: vec![0; SCRATCH],
            pipes: Vec::new(),
            pipes_made: 0,
            max_pipes: 0,
            held: 0,
            buffers: Vec::new(),
            splice,
            spliced: 0,
        }
    }

    /// Allows so many pipes from now on; none are taken away.
    pub fn limit_pipes(&mut self, most: usize) {
        self.max_pipes = most;
    }

    /// How much to read at once.
    fn read_size(&self) -> usize {
        if self.held > HELD { FRUGAL_READ } else { SCRATCH }
    }

    fn take_pipe(&mut self) -> Option<Pipe> {
        if let Some(pipe) = self.pipes.pop() {
            return Some(pipe);
        }
        if self.pipes_made >= self.max_pipes {
            return None;
        }
        let (out, into) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).ok()?;
        // Users without CAP_SYS_RESOURCE have 64 MiB in all (pipe-user-pages-soft): then it stays as it is.
        let capacity = rustix::pipe::fcntl_setpipe_size(&into, PIPE)
            .or_else(|_| rustix::pipe::fcntl_getpipe_size(&into))
            .unwrap_or(4096);
        if capacity < BULK_READ {
            // The user has too many: through so small a one bytes move more slowly than by copying.
            return None;
        }
        self.pipes_made += 1;
        Some(Pipe { out, into, capacity })
    }

    fn give_pipe(&mut self, pipe: Pipe) {
        self.pipes.push(pipe);
    }

    /// A pipe is closed with what is in it.
    fn lose_pipe(&mut self, pipe: Pipe) {
        self.pipes_made -= 1;
        drop(pipe);
    }

    fn take_buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    fn give_buffer(&mut self, mut buffer: Vec<u8>) {
        // Large buffers go back to the system: they come from slow readers, and are rare.
        if self.buffers.len() < POOL && buffer.capacity() <= 64 * 1024 {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }
}

/// Why a direction stopped for now.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do until the kernel reports an event.
    Wait,
    /// There is more to do, but others shall have their turn.
    Again,
    /// Source ended, all was written, and the end was passed on.
    Finished,
    /// Reading failed: the source's peer has reset the connection.
    SourceFailed(Errno),
    /// Writing failed: the target's peer takes no more.
    TargetFailed(Errno),
}

/// What to do when all of a direction was written and its source has ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AtEnd {
    /// Tell the target: the other direction goes on (half-close).
    Shutdown,
    /// Nothing: the other direction has ended, and both sockets are about to be closed.
    Leave,
}

/// One direction of a session.
#[derive(Debug, Default)]
pub struct Direction {
    /// Read, but not yet written.
    pending: Vec<u8>,
    /// How much of `pending` is written.
    written: usize,
    /// How much of the pool's `held` is this direction's.
    counted: usize,
    pipe: Option<Pipe>,
    in_pipe: usize,
    bulk_reads: u8,
    /// One of the sockets is of a kind that cannot be spliced.
    unspliceable: bool,
    ended: bool,
    finished: bool,
    /// Bytes written to the target.
    pub bytes: u64,
}

impl Direction {
    /// A direction that has `pending` to write first, of which so much is written.
    pub fn with_pending(pending: Vec<u8>, written: usize) -> Self {
        let bytes = written as u64;
        // Nothing is held for what is written: an idle session has no buffer.
        let (pending, written) = if written < pending.len() {
            (pending, written)
        } else {
            (Vec::new(), 0)
        };
        Direction {
            pending,
            written,
            bytes,
            ..Direction::default()
        }
    }

    /// Whether the end was passed on, or nothing more can be written.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Takes the direction out of use, giving back what it holds. Bytes under way are lost.
    pub fn abandon(&mut self, pool: &mut Pool) {
        self.finished = true;
        if let Some(pipe) = self.pipe.take() {
            if self.in_pipe == 0 {
                pool.give_pipe(pipe);
            } else {
                pool.lose_pipe(pipe);
            }
        }
        self.in_pipe = 0;
        self.drop_pending(pool);
    }

    /// Moves what can be moved.
    pub fn pump(&mut self, from: &mut Endpoint, to: &mut Endpoint, pool: &mut Pool, at_end: AtEnd) -> Outcome {
        if self.finished {
            return Outcome::Finished;
        }
        for _ in 0..BUDGET {
            match self.write_held(to, pool) {
                Ok(true) => {}
                Ok(false) => return Outcome::Wait,
                Err(error) => return self.target_failed(error, pool),
            }
            if self.ended {
                if at_end == AtEnd::Shutdown {
                    let _ = rustix::net::shutdown(&to.fd, Shutdown::Write);
                }
                self.abandon(pool);
                return Outcome::Finished;
            }
            if !from.readable || !to.writable {
                self.give_pipe_back(pool);
                return Outcome::Wait;
            }
            let moved = if self.bulk_reads >= BULK_READS && pool.splice && !self.unspliceable {
                self.splice_in(from, pool)
            } else {
                match self.copy(from, to, pool) {
                    Ok(moved) => Ok(moved),
                    Err(Failed::Source(error)) => Err(error),
                    Err(Failed::Target(error)) => return self.target_failed(error, pool),
                }
            };
            match moved {
                Ok(()) => {}
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => from.readable = false,
                Err(error) => {
                    self.abandon(pool);
                    return Outcome::SourceFailed(error);
                }
            }
        }
        Outcome::Again
    }

    /// Writes what was read before. Returns whether all is gone.
    fn write_held(&mut self, to: &mut Endpoint, pool: &mut Pool) -> Result<bool, Errno> {
        if self.counted == 0 {
            self.counted = self.pending.len();
            pool.held += self.counted;
        }
        while self.written < self.pending.len() {
            if !to.writable {
                return Ok(false);
            }
            to.prepare_write();
            match rustix::net::send(&to.fd, &self.pending[self.written..], SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.written += count;
                    self.bytes += count as u64;
                }
                Err(Errno::AGAIN) => to.writable = false,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        if self.pending.capacity() != 0 {
            self.drop_pending(pool);
        }
        while self.in_pipe != 0 {
            let Some(pipe) = &self.pipe else { return Ok(true) };
            if !to.writable {
                return Ok(false);
            }
            to.prepare_write();
            let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
            match rustix::pipe::splice(&pipe.out, None, &to.fd, None, self.in_pipe, flags) {
                Ok(count) => {
                    self.in_pipe -= count.min(self.in_pipe);
                    self.bytes += count as u64;
                }
                Err(Errno::AGAIN) => to.writable = false,
                Err(Errno::INTR) => {}
                Err(error) if cannot_splice(error) => {
                    self.unpipe()?;
                    return self.write_held(to, pool);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Takes what is in the pipe back, to be written in the ordinary way.
    fn unpipe(&mut self) -> Result<(), Errno> {
        self.unspliceable = true;
        let Some(pipe) = &self.pipe else { return Ok(()) };
        let mut taken = vec![0; self.in_pipe];
        let mut length = 0;
        while length < taken.len() {
            match rustix::io::read(&pipe.out, &mut taken[length..])? {
                0 => break,
                count => length += count,
            }
        }
        taken.truncate(length);
        (self.pending, self.written, self.in_pipe) = (taken, 0, 0);
        Ok(())
    }

    fn drop_pending(&mut self, pool: &mut Pool) {
        self.written = 0;
        pool.held -= std::mem::take(&mut self.counted);
        pool.give_buffer(std::mem::take(&mut self.pending));
    }

    fn give_pipe_back(&mut self, pool: &mut Pool) {
        if let Some(pipe) = self.pipe.take() {
            pool.give_pipe(pipe);
        }
    }

    /// Reads once and writes at once; keeps what does not fit.
    fn copy(&mut self, from: &mut Endpoint, to: &mut Endpoint, pool: &mut Pool) -> Result<(), Failed> {
        let size = pool.read_size();
        let count = rustix::net::recv(&from.fd, &mut pool.scratch[..size], RecvFlags::empty())
            .map_err(Failed::Source)?
            .0;
        if count == 0 {
            self.ended = true;
            return Ok(());
        }
        if count < size && !from.ended {
            from.readable = false;
        }
        self.bulk_reads = if count >= BULK_READ {
            self.bulk_reads.saturating_add(1)
        } else {
            0
        };
        if self.bulk_reads == BULK_READS {
            pool.spliced += 1;
        }
        to.prepare_write();
        let written = match rustix::net::send(&to.fd, &pool.scratch[..count], SendFlags::NOSIGNAL) {
            Ok(written) => written,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return Err(Failed::Target(error)),
        };
        self.bytes += written as u64;
        if written < count {
            to.writable = false;
            let mut buffer = pool.take_buffer();
            buffer.extend_from_slice(&pool.scratch[written..count]);
            self.pending = buffer;
        }
        Ok(())
    }

    fn splice_in(&mut self, from: &mut Endpoint, pool: &mut Pool) -> Result<(), Errno> {
        if self.pipe.is_none() {
            self.pipe = pool.take_pipe();
        }
        let Some(pipe) = &self.pipe else {
            // No descriptors: go on copying.
            self.bulk_reads = 0;
            return Ok(());
        };
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let count = match rustix::pipe::splice(&from.fd, None, &pipe.into, None, pipe.capacity, flags) {
            Err(error) if cannot_splice(error) => {
                self.unspliceable = true;
                return Ok(());
            }
            result => result?,
        };
        if count == 0 {
            self.ended = true;
        } else if count < BULK_READ / 4 {
            // Small pieces again: copying them is cheaper.
            self.bulk_reads = self.bulk_reads.saturating_sub(1);
        } else {
            self.bulk_reads = BULK_READS;
        }
        self.in_pipe = count;
        Ok(())
    }

    fn target_failed(&mut self, error: Errno, pool: &mut Pool) -> Outcome {
        self.abandon(pool);
        Outcome::TargetFailed(error)
    }
}

/// Sockets of some kinds (Multipath TCP on older kernels) have no splice; others give it up in certain states.
fn cannot_splice(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

enum Failed {
    Source(Errno),
    Target(Errno),
}

/// Makes closing the socket send RST instead of FIN, so that the other side learns that the connection broke.
pub fn reset_on_close(fd: impl AsFd) {
    let _ = rustix::net::sockopt::set_socket_linger(fd, Some(std::time::Duration::ZERO));
}
