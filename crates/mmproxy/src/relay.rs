//! Moving bytes from one socket to another.
//!
//! A [`Direction`] reads into a buffer that all sessions of a worker share and writes at once, so an idle session holds
//! no buffer. Only what the other side does not take is kept, and nothing more is read until that is gone. While a
//! direction moves in large pieces it does so through a pipe with `splice(2)`; the pipe is borrowed from the worker's pool
//! while bytes are under way and given back when the source is dry, so an idle session holds two descriptors. The target
//! of a direction that is fast as well gets a larger send buffer, as long as the worker has some to give.
//!
//! Sockets are registered once, edge-triggered. What an [`Endpoint`] can do is remembered until the kernel says otherwise:
//! a read that returns less than was asked for has emptied the socket (epoll(7), question 9).

use crate::sys;
use crate::timer::Millis;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use rustix::pipe::{PipeFlags, SpliceFlags};
use std::time::Duration;

/// Bytes read at once. Measured: at 256 KiB copying is close to `splice`, at 16–64 KiB it costs twice the CPU.
pub const SCRATCH: usize = 256 * 1024;

/// Capacity asked for a pipe; the kernel's limit for users without privilege.
const PIPE: usize = 1024 * 1024;

/// A piece of this size is bulk: what follows it is spliced. Measured: waiting for more and larger ones costs streams of
/// many connections a fifth of all CPU time.
const BULK_PIECE: usize = 16 * 1024;

/// Copying a smaller piece is cheaper than two more system calls.
const SMALL_PIECE: usize = 4 * 1024;

/// So many small pieces in a row, and the direction is copied again. Bulk has small ones in between.
const SMALL_PIECES: u8 = 8;

/// Half of the send buffer of a fast target, which is twice what the kernel lets grow by itself: the longer it takes to
/// fill, the more of it leaves with the acknowledgements, and the less often this side is woken.
const SEND_BUFFER: usize = 4 << 20;

/// A spliced direction is fast if it moves so much ...
const FAST_BYTES: u64 = 8 << 20;

/// ... in so many milliseconds (130 Mbit/s).
const FAST_TIME: u64 = 500;

/// Descriptors of a pipe.
const PER_PIPE: usize = 2;

/// Smallest pipe that is of use.
const SMALLEST_PIPE: usize = 64 * 1024;

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
    /// Descriptors that sessions leave for pipes.
    spare: usize,
    /// Large send buffers that sockets have; there may be as many as pipes.
    send_buffers: usize,
    /// Bytes in the `pending` of all directions.
    held: usize,
    buffers: Vec<Vec<u8>>,
    splice: bool,
    /// How many directions were handed to splice since somebody took this number.
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
            spare: usize::MAX,
            send_buffers: 0,
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

    /// So many descriptors are left by sessions: pipes take no more of them than there are.
    pub fn leave(&mut self, descriptors: usize) {
        self.spare = descriptors;
    }

    /// Descriptors of all pipes.
    pub fn pipe_descriptors(&self) -> usize {
        self.pipes_made * PER_PIPE
    }

    /// Closes the pipes that nobody uses, for a session needs the descriptors.
    pub fn close_idle_pipes(&mut self) {
        self.pipes_made -= self.pipes.len();
        self.pipes.clear();
    }

    /// A pipe for a direction of this pace: half of them are kept for the fast, as a slow reader holds one for long.
    fn take_pipe(&mut self, pace: Pace) -> Option<Pipe> {
        let lent = self.pipes_made - self.pipes.len();
        if matches!(pace, Pace::Watched { .. }) && lent >= self.max_pipes.div_ceil(2) {
            return None;
        }
        if let Some(pipe) = self.pipes.pop() {
            return Some(pipe);
        }
        if self.pipes_made >= self.max_pipes || (self.pipes_made + 1) * PER_PIPE > self.spare {
            return None;
        }
        let (out, into) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).ok()?;
        // Users without CAP_SYS_RESOURCE have 64 MiB in all (pipe-user-pages-soft): then it stays as it is.
        let capacity = rustix::pipe::fcntl_setpipe_size(&into, PIPE)
            .or_else(|_| rustix::pipe::fcntl_getpipe_size(&into))
            .unwrap_or(4096);
        if capacity < SMALLEST_PIPE {
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

/// How fast a spliced direction is.
#[derive(Copy, Clone, Debug)]
enum Pace {
    /// Not known to be fast: watched since this time, when so many bytes were written.
    Watched { since: Millis, bytes: u64 },
    /// It has proven fast. `wide`: its target has one of the large send buffers.
    Fast { wide: bool },
}

impl Default for Pace {
    fn default() -> Self {
        Pace::Watched {
            since: Millis(0),
            bytes: 0,
        }
    }
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
    /// So many small pieces are still spliced; 0 while copying.
    splices: u8,
    pace: Pace,
    /// It is counted among the pool's `spliced`.
    spliced: bool,
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
        if let Pace::Fast { wide: true } = std::mem::take(&mut self.pace) {
            pool.send_buffers -= 1;
        }
        self.drop_pending(pool);
    }

    /// Moves what can be moved.
    pub fn pump(
        &mut self,
        from: &mut Endpoint,
        to: &mut Endpoint,
        pool: &mut Pool,
        at_end: AtEnd,
        now: Millis,
    ) -> Outcome {
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
            let moved = if self.splices > 0 && pool.splice && !self.unspliceable {
                self.watch_pace(to, pool, now);
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
        if count >= BULK_PIECE && pool.splice && !self.unspliceable {
            self.splices = SMALL_PIECES;
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

    /// Looks whether this direction is fast, and gives its target a large send buffer then. A slow reader never gets one,
    /// so that the kernel holds no more for it than it would anyway.
    fn watch_pace(&mut self, to: &Endpoint, pool: &mut Pool, now: Millis) {
        let Pace::Watched { since, bytes } = self.pace else {
            return;
        };
        if self.bytes - bytes < FAST_BYTES {
            return;
        }
        self.pace = if now.0 - since.0 <= FAST_TIME {
            let has_larger =
                || rustix::net::sockopt::socket_send_buffer_size(&to.fd).is_ok_and(|size| size >= 2 * SEND_BUFFER);
            // It fails without CAP_NET_ADMIN; the size that is allowed then is below what the kernel gives by itself.
            let wide = pool.send_buffers < pool.max_pipes
                && !has_larger()
                && sys::set_send_buffer(&to.fd, SEND_BUFFER).is_ok();
            pool.send_buffers += usize::from(wide);
            Pace::Fast { wide }
        } else {
            Pace::Watched {
                since: now,
                bytes: self.bytes,
            }
        };
    }

    fn splice_in(&mut self, from: &mut Endpoint, pool: &mut Pool) -> Result<(), Errno> {
        if self.pipe.is_none() {
            self.pipe = pool.take_pipe(self.pace);
        }
        let Some(pipe) = &self.pipe else {
            // No descriptors: go on copying.
            self.splices = 0;
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
        } else if count < SMALL_PIECE {
            self.splices -= 1;
        } else {
            self.splices = SMALL_PIECES;
        }
        if count != 0 && !self.spliced {
            self.spliced = true;
            pool.spliced += 1;
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
    let _ = rustix::net::sockopt::set_socket_linger(fd, Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// A direction with the peers of its two sockets.
    struct Line {
        sender: TcpStream,
        from: Endpoint,
        direction: Direction,
        to: Endpoint,
        receiver: TcpStream,
    }

    fn pair() -> (TcpStream, Endpoint) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("socket");
        let peer = TcpStream::connect(listener.local_addr().expect("address")).expect("connected");
        let (own, _) = listener.accept().expect("accepted");
        own.set_nonblocking(true).expect("not blocking");
        peer.set_nonblocking(true).expect("not blocking");
        (peer, Endpoint::new(own.into()))
    }

    impl Line {
        fn new() -> Self {
            let ((sender, from), (receiver, to)) = (pair(), pair());
            Line {
                sender,
                from,
                direction: Direction::default(),
                to,
                receiver,
            }
        }

        fn pump(&mut self, pool: &mut Pool, now: Millis) {
            // What the kernel would report.
            (self.from.readable, self.to.writable) = (true, true);
            let outcome = self
                .direction
                .pump(&mut self.from, &mut self.to, pool, AtEnd::Shutdown, now);
            assert!(matches!(outcome, Outcome::Wait | Outcome::Again), "{outcome:?}");
        }

        /// Sends a piece through and checks that it arrives.
        fn carry(&mut self, size: usize, pool: &mut Pool, now: Millis) {
            let piece: Vec<u8> = (0..size).map(|index| (index % 251) as u8).collect();
            let (mut sent, mut received) = (0, Vec::new());
            let mut buffer = vec![0; size];
            while received.len() < size {
                match self.sender.write(&piece[sent..]) {
                    Ok(count) => sent += count,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                self.pump(pool, now);
                match self.receiver.read(&mut buffer) {
                    Ok(count) => received.extend_from_slice(&buffer[..count]),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            assert_eq!(received, piece);
        }

        /// Sends until nobody takes more.
        fn clog(&mut self, pool: &mut Pool) {
            let piece = vec![0; 256 * 1024];
            while self.direction.in_pipe == 0 && self.direction.pending.is_empty() {
                let _ = self.sender.write(&piece);
                self.pump(pool, Millis(0));
            }
        }

        fn send_buffer(&self) -> usize {
            rustix::net::sockopt::socket_send_buffer_size(&self.to.fd).expect("its size")
        }
    }

    fn pool(pipes: usize) -> Pool {
        let mut pool = Pool::new(true);
        pool.limit_pipes(pipes);
        pool
    }

    #[test]
    fn large_pieces_are_spliced_and_a_run_of_small_ones_is_copied_again() {
        let (mut pool, mut line) = (pool(4), Line::new());
        line.carry(BULK_PIECE - 1, &mut pool, Millis(0));
        assert_eq!(pool.spliced, 0);
        for turn in 1..3 {
            line.carry(4 * BULK_PIECE, &mut pool, Millis(0));
            line.carry(4 * BULK_PIECE, &mut pool, Millis(0));
            assert!(line.direction.splices > 0, "turn {turn}");
            assert_eq!(pool.spliced, 1, "it is counted once");
            for _ in 0..SMALL_PIECES {
                line.carry(64, &mut pool, Millis(0));
            }
            assert_eq!(line.direction.splices, 0, "turn {turn}");
        }
        for size in (1..40).map(|factor| factor * 1777).chain([1, 500_000, 2, 3_000_000, 3]) {
            line.carry(size, &mut pool, Millis(0));
        }
        assert_eq!(pool.pipes.len(), pool.pipes_made, "an idle direction holds no pipe");
    }

    #[test]
    fn only_fast_directions_get_large_send_buffers_and_they_give_them_back() {
        let mut pool = pool(1);
        let mut lines = [Line::new(), Line::new(), Line::new()];
        if let Err(error) = sys::set_send_buffer(&pair().1.fd, SEND_BUFFER) {
            return rig::skip(
                "only_fast_directions_get_large_send_buffers_and_they_give_them_back",
                &format!("a send buffer of any size needs CAP_NET_ADMIN: {error}"),
            );
        }
        let carry = |line: &mut Line, pace: u64, pool: &mut Pool| {
            for index in 0..24 {
                line.carry(1 << 20, pool, Millis(1_000_000 + index * pace));
            }
        };
        let [slow, fast, late] = &mut lines;
        carry(slow, FAST_TIME / 4, &mut pool);
        assert!(slow.send_buffer() < 2 * SEND_BUFFER);
        carry(fast, 1, &mut pool);
        assert_eq!((fast.send_buffer(), pool.send_buffers), (2 * SEND_BUFFER, 1));
        carry(late, 1, &mut pool);
        assert!(late.send_buffer() < 2 * SEND_BUFFER, "there is one only");
        for line in &mut lines {
            line.direction.abandon(&mut pool);
            line.direction.abandon(&mut pool);
        }
        assert_eq!(pool.send_buffers, 0);
    }

    #[test]
    fn slow_readers_leave_half_of_the_pipes_to_the_fast() {
        let mut pool = pool(2);
        let (mut slow, mut slower, mut fast) = (Line::new(), Line::new(), Line::new());
        slow.clog(&mut pool);
        slower.clog(&mut pool);
        let held = [&slow, &slower].map(|line| line.direction.pipe.is_some());
        assert_eq!((held, pool.pipes_made), ([true, false], 1));
        fast.direction.pace = Pace::Fast { wide: false };
        fast.clog(&mut pool);
        assert!(fast.direction.pipe.is_some());
    }
}
