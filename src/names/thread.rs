//! The thread that asks: a socket for each question, of the kernel's network.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with};

use super::message::{Ask, Heard};
use super::resolver::{Random, Resolver};
use crate::config::{Answers, DNS_PORT, DnsConfig, Question};
use crate::privileges::enter_asking_thread;
use crate::report::NameReport;

/// How long the thread sleeps at most: the delay of what it is told.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// Pause between two looks for answers.
const PACE: Duration = Duration::from_millis(10);

/// Datagrams of one socket that are read in a row.
const MOST_IN_A_ROW: usize = 16;

/// Room for a datagram: more than is asked for.
const DATAGRAM: usize = 4096;

/// The longest message over TCP, with its length (RFC 1035 4.2.2).
const LONGEST: usize = 2 + 65_535;

/// The name servers: those of `[dns]`, or else those of the machine.
pub fn name_servers(dns: &DnsConfig) -> Vec<SocketAddr> {
    match dns.servers.as_slice() {
        [] => of_resolv_conf(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default()),
        servers => servers.to_vec(),
    }
}

/// resolv.conf(5): without a name server it is the one on this host.
fn of_resolv_conf(text: &str) -> Vec<SocketAddr> {
    let lines = text.lines().map(str::split_ascii_whitespace);
    let named = lines.filter_map(|mut words| (words.next() == Some("nameserver")).then(|| words.next())?);
    let servers: Vec<SocketAddr> = named
        .filter_map(|address| address.parse::<IpAddr>().ok())
        .map(|ip| SocketAddr::new(ip, DNS_PORT))
        .collect();
    match servers.is_empty() {
        true => vec![SocketAddr::from(([127, 0, 0, 1], DNS_PORT))],
        false => servers,
    }
}

/// SipHash of a counter under a key of the system's.
fn random() -> Random {
    let (keyed, mut count) = (RandomState::new(), 0_u64);
    Box::new(move || {
        count += 1;
        keyed.hash_one(count) as u16
    })
}

/// A question that was sent.
struct Line {
    token: u64,
    socket: OwnedFd,
    /// Of TCP; a datagram has been sent as a whole.
    stream: Option<Stream>,
}

/// What was sent and heard of a stream so far.
struct Stream {
    outgoing: Vec<u8>,
    sent: usize,
    incoming: Vec<u8>,
}

impl Line {
    fn open(ask: &Ask) -> io::Result<Self> {
        let family = if ask.server.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let kind = if ask.by_tcp {
            SocketType::STREAM
        } else {
            SocketType::DGRAM
        };
        let socket = socket_with(family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
        match connect(&socket, &ask.server) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let mut stream = None;
        if ask.by_tcp {
            let length = u16::try_from(ask.message.len()).map_err(io::Error::other)?;
            stream = Some(Stream {
                outgoing: [&length.to_be_bytes()[..], &ask.message].concat(),
                sent: 0,
                incoming: Vec::new(),
            });
        } else {
            send(&socket, &ask.message, SendFlags::empty())?;
        }
        Ok(Line {
            token: ask.token,
            socket,
            stream,
        })
    }

    fn wants(&self) -> PollFlags {
        match &self.stream {
            Some(stream) if stream.sent < stream.outgoing.len() => PollFlags::OUT,
            _ => PollFlags::IN,
        }
    }

    /// Goes on; gives what it hears to `hear`, which says whether more is wanted.
    fn go_on(&mut self, mut hear: impl FnMut(Heard<'_>) -> bool) {
        let gone = match &mut self.stream {
            None => read_datagrams(&self.socket, &mut hear),
            Some(stream) => stream.go_on(&self.socket, &mut hear),
        };
        if gone.is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock) {
            hear(Heard::Gone);
        }
    }
}

fn read_datagrams(socket: &OwnedFd, hear: &mut impl FnMut(Heard<'_>) -> bool) -> io::Result<()> {
    let mut buffer = [0; DATAGRAM];
    for _ in 0..MOST_IN_A_ROW {
        let (read, _) = recv(socket, &mut buffer[..], RecvFlags::empty())?;
        if !hear(Heard::Message(&buffer[..read])) {
            break;
        }
    }
    Ok(())
}

impl Stream {
    fn go_on(&mut self, socket: &OwnedFd, hear: &mut impl FnMut(Heard<'_>) -> bool) -> io::Result<()> {
        while let Some(left) = self.outgoing.get(self.sent..).filter(|left| !left.is_empty()) {
            self.sent += send(socket, left, SendFlags::NOSIGNAL)?;
        }
        let mut buffer = [0; DATAGRAM];
        while self.incoming.len() < LONGEST {
            let (read, _) = recv(socket, &mut buffer[..], RecvFlags::empty())?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.incoming.extend_from_slice(&buffer[..read]);
            let Some((length, message)) = self.incoming.split_first_chunk::<2>() else {
                continue;
            };
            let length = usize::from(u16::from_be_bytes(*length));
            if let Some(message) = message.get(..length) {
                // Only the name server writes into the stream: what is no answer ends it.
                return match hear(Heard::Message(message)) {
                    true => Err(io::ErrorKind::InvalidData.into()),
                    false => Ok(()),
                };
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// The resolver with its sockets.
struct Asker {
    resolver: Resolver,
    lines: Vec<Line>,
}

impl Asker {
    /// Sends what is due, and waits for answers: for so long at most.
    fn round(&mut self, longest: Duration) {
        let now = Instant::now();
        let asks = self.resolver.poll(now);
        self.send(asks, now);
        self.lines.retain(|line| self.resolver.is_waiting(line.token));
        let due = self.resolver.next_due().map(|at| at.saturating_duration_since(now));
        let sleep = due.unwrap_or(longest).min(longest);
        let mut polled: Vec<_> = self
            .lines
            .iter()
            .map(|line| PollFd::from_borrowed_fd(line.socket.as_fd(), line.wants()))
            .collect();
        let timeout = Timespec::try_from(sleep).ok();
        // An interrupted wait is the same as one in which nothing came.
        let _ = poll(&mut polled, timeout.as_ref());
        let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(polled);
        let now = Instant::now();
        let mut asks = Vec::new();
        let Asker { resolver, lines } = self;
        for (line, _) in lines.iter_mut().zip(ready).filter(|(_, is_ready)| *is_ready) {
            let token = line.token;
            line.go_on(|heard| {
                asks.extend(resolver.hear(token, heard, now));
                resolver.is_waiting(token)
            });
        }
        self.send(asks, now);
    }

    /// What cannot be sent is tried with the next server.
    fn send(&mut self, asks: Vec<Ask>, now: Instant) {
        for ask in asks {
            let mut next = Some(ask);
            while let Some(ask) = next {
                next = match Line::open(&ask) {
                    Ok(line) => {
                        self.lines.push(line);
                        None
                    }
                    Err(_) => self.resolver.hear(ask.token, Heard::Gone, now),
                };
            }
        }
    }
}

/// A resolver that has asked everything once, for a thread to go on with.
pub struct FirstAnswers(Asker);

impl FirstAnswers {
    /// Asks, and waits for so long at most. What does not come in time comes later.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn wait(
        dns: &DnsConfig,
        questions: BTreeSet<Question>,
        known: Answers,
        patience: Duration,
    ) -> io::Result<Self> {
        let (dns, servers) = (dns.clone(), name_servers(dns));
        let first = move || {
            enter_asking_thread();
            let now = Instant::now();
            let mut resolver = Resolver::new((dns.clone(), servers.clone()), known, random());
            resolver.set_questions(dns, servers, questions, now);
            let mut asker = Asker {
                resolver,
                lines: Vec::new(),
            };
            while !asker.resolver.is_settled() && now.elapsed() < patience {
                asker.round(LONGEST_SLEEP);
            }
            FirstAnswers(asker)
        };
        let thread = thread::Builder::new().name("resolver".into()).spawn(first)?;
        thread.join().map_err(|_| io::Error::other("it has panicked"))
    }

    /// What is known now.
    pub fn answers(&self) -> &Answers {
        self.0.resolver.answers()
    }
}

/// What the thread and its owner tell each other.
#[derive(Default)]
struct Desk {
    questions: Option<(DnsConfig, Vec<SocketAddr>, BTreeSet<Question>)>,
    is_settled: bool,
    answers: Answers,
    report: Vec<NameReport>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    desk: Mutex<Desk>,
}

/// The thread. Dropping it ends it.
pub struct Resolving {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Resolving {
    /// Goes on asking.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn start(first: FirstAnswers) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        publish(&first.0, &shared);
        let run = move || {
            // This thread reads messages of hosts that are not trusted.
            enter_asking_thread();
            let mut asker = first.0;
            while !theirs.stop.load(Ordering::Relaxed) {
                let told = lock(&theirs).questions.take();
                if let Some((dns, servers, questions)) = told {
                    asker.resolver.set_questions(dns, servers, questions, Instant::now());
                }
                asker.round(LONGEST_SLEEP);
                publish(&asker, &theirs);
            }
        };
        let thread = thread::Builder::new().name("resolver".into()).spawn(run)?;
        Ok(Resolving {
            shared,
            thread: Some(thread),
        })
    }

    /// Has it ask these from now on.
    pub fn set_questions(&self, dns: &DnsConfig, questions: BTreeSet<Question>) {
        let servers = name_servers(dns);
        let mut desk = lock(&self.shared);
        desk.questions = Some((dns.clone(), servers, questions));
        desk.is_settled = false;
    }

    /// Waits until all is answered or has failed, for so long at most.
    pub fn wait(&self, patience: Duration) {
        let began = Instant::now();
        while !lock(&self.shared).is_settled && began.elapsed() < patience {
            thread::sleep(PACE);
        }
    }

    /// The last good answers.
    pub fn answers(&self) -> Answers {
        lock(&self.shared).answers.clone()
    }

    /// What there is of each question.
    pub fn report(&self) -> Vec<NameReport> {
        lock(&self.shared).report.clone()
    }
}

impl Drop for Resolving {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // If it has panicked, the panic hook has said so.
            let _ = thread.join();
        }
    }
}

fn lock(shared: &Shared) -> std::sync::MutexGuard<'_, Desk> {
    shared.desk.lock().unwrap_or_else(PoisonError::into_inner)
}

fn publish(asker: &Asker, shared: &Shared) {
    let mut desk = lock(shared);
    // Until it has taken them it knows nothing of other questions.
    desk.is_settled = desk.questions.is_none() && asker.resolver.is_settled();
    if desk.answers != *asker.resolver.answers() {
        desk.answers = asker.resolver.answers().clone();
    }
    desk.report = asker.resolver.report(Instant::now());
}
