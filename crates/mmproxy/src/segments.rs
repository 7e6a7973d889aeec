//! Sending many datagrams with few system calls: neighbours of equal length to the same place become one message that
//! the kernel (or the network card) cuts again (`UDP_SEGMENT`), and messages go out together (`sendmmsg`).

use crate::sys::{self, BATCH, Outgoing};
use rustix::fd::AsFd;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};

/// One datagram to send.
#[derive(Copy, Clone, Debug, Default)]
pub struct Datagram<'a> {
    /// Where to; `None` on connected sockets.
    pub to: Option<SocketAddr>,
    /// The address of ours to send from.
    pub from: Option<IpAddr>,
    /// Header before the payload, may be empty.
    pub prefix: &'a [u8],
    /// Payload.
    pub payload: &'a [u8],
}

impl Datagram<'_> {
    fn len(&self) -> usize {
        self.prefix.len() + self.payload.len()
    }
}

/// Segments of one message: the kernel's `UDP_MAX_SEGMENTS` before it was doubled.
const MAX_SEGMENTS: usize = 64;

/// Bytes of one message: an IP packet less room for any header.
const MAX_BYTES: usize = 65_000;

/// What became of the datagrams.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Handed to the kernel.
    pub sent: u64,
    /// Dropped: the kernel has no room, or cannot send them.
    pub failed: u64,
    /// Errors of earlier datagrams (ICMP) that the socket reported instead; those datagrams were sent again.
    pub stale_errors: u64,
}

/// Sends datagrams through one socket, in their order.
#[derive(Debug)]
pub struct Sender {
    /// Longest datagram that was not refused as a segment: cards and old kernels have their limits.
    longest_segment: usize,
}

impl Default for Sender {
    fn default() -> Self {
        Sender {
            longest_segment: usize::from(u16::MAX),
        }
    }
}

impl Sender {
    /// Sends them all, or counts why not. Never waits.
    pub fn send(&mut self, fd: impl AsFd, datagrams: &[Datagram<'_>]) -> Sent {
        let mut sent = Sent::default();
        if let [datagram] = datagrams {
            // The usual case with many clients: nothing to gather.
            let parts = [IoSlice::new(datagram.prefix), IoSlice::new(datagram.payload)];
            let parts = if datagram.prefix.is_empty() {
                &parts[1..]
            } else {
                &parts[..]
            };
            let message = Outgoing {
                parts,
                to: datagram.to,
                from: datagram.from,
                segment: None,
            };
            self.send_messages(&fd, datagrams, &[message], &[1], &mut sent);
            return sent;
        }
        for chunk in datagrams.chunks(BATCH / 2) {
            self.send_chunk(&fd, chunk, &mut sent);
        }
        sent
    }

    fn send_chunk(&mut self, fd: impl AsFd, datagrams: &[Datagram<'_>], sent: &mut Sent) {
        let mut parts = [IoSlice::new(&[]); BATCH];
        // Where in `parts` the datagram with this index begins.
        let mut starts = [0; BATCH / 2 + 1];
        let mut count = 0;
        for (index, datagram) in datagrams.iter().enumerate() {
            for part in [datagram.prefix, datagram.payload] {
                if !part.is_empty() {
                    parts[count] = IoSlice::new(part);
                    count += 1;
                }
            }
            starts[index + 1] = count;
        }
        let nothing = Outgoing {
            parts: &[],
            to: None,
            from: None,
            segment: None,
        };
        let mut messages = [nothing; BATCH / 2];
        let mut sizes = [0; BATCH / 2];
        let mut used = 0;
        let mut first = 0;
        while first < datagrams.len() {
            let run = self.run_length(&datagrams[first..]);
            let head = &datagrams[first];
            messages[used] = Outgoing {
                parts: &parts[starts[first]..starts[first + run]],
                to: head.to,
                from: head.from,
                segment: (run > 1).then_some(head.len() as u16),
            };
            sizes[used] = run;
            used += 1;
            first += run;
        }
        self.send_messages(fd, datagrams, &messages[..used], &sizes[..used], sent);
    }

    /// How many of the first datagrams can be one message: all but the last have the first's length.
    fn run_length(&self, datagrams: &[Datagram<'_>]) -> usize {
        let head = &datagrams[0];
        let length = head.len();
        if length == 0 || length > self.longest_segment {
            return 1;
        }
        let most = datagrams.len().min(MAX_SEGMENTS).min((MAX_BYTES / length).max(1));
        let mut run = 1;
        while run < most {
            let next = &datagrams[run];
            if next.to != head.to || next.from != head.from || next.len() > length || next.len() == 0 {
                break;
            }
            run += 1;
            if next.len() < length {
                break;
            }
        }
        run
    }

    fn send_messages(
        &mut self,
        fd: impl AsFd,
        datagrams: &[Datagram<'_>],
        messages: &[Outgoing<'_>],
        sizes: &[usize],
        sent: &mut Sent,
    ) {
        let mut next = 0;
        let mut retried = false;
        while next < messages.len() {
            match sys::send_messages(&fd, &messages[next..]) {
                Ok(0) => return,
                Ok(count) => {
                    sent.sent += sizes[next..next + count].iter().sum::<usize>() as u64;
                    next += count;
                    retried = false;
                }
                Err(error) if is_stale(&error) && !retried => {
                    sent.stale_errors += 1;
                    retried = true;
                }
                Err(error) => {
                    let before: usize = sizes[..next].iter().sum();
                    if sizes[next] > 1 && !is_full(&error) {
                        self.longest_segment = self.longest_segment.min(datagrams[before].len() - 1);
                        self.send_singly(&fd, &datagrams[before..before + sizes[next]], sent);
                    } else {
                        sent.failed += sizes[next] as u64;
                    }
                    next += 1;
                    retried = false;
                }
            }
        }
    }

    /// One message for each: for those that were refused together.
    fn send_singly(&self, fd: impl AsFd, datagrams: &[Datagram<'_>], sent: &mut Sent) {
        for datagram in datagrams {
            let parts = [IoSlice::new(datagram.prefix), IoSlice::new(datagram.payload)];
            let message = Outgoing {
                parts: &parts,
                to: datagram.to,
                from: datagram.from,
                segment: None,
            };
            match sys::send_messages(&fd, &[message]) {
                Ok(1) => sent.sent += 1,
                _ => sent.failed += 1,
            }
        }
    }
}

/// An ICMP error for an earlier datagram: it is reported once and says nothing about this one.
fn is_stale(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EPROTO | libc::EINTR)
    )
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Duration;

    #[test]
    fn datagrams_arrive_as_they_were_whatever_their_lengths() {
        let receiver = UdpSocket::bind("127.0.0.1:0").expect("socket");
        receiver
            .set_read_timeout(Some(Duration::from_secs(5)))
            .expect("timeout");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("socket");
        let to = receiver.local_addr().ok();
        let payloads: Vec<Vec<u8>> = [3, 3, 3, 2, 3, 0, 0, 5, 5, 1400, 1400, 1400, 7, 20_000, 20_000, 9, 9, 9]
            .into_iter()
            .chain([4; 100])
            .enumerate()
            .map(|(index, length)| vec![index as u8; length])
            .collect();
        for prefix in [&b""[..], b"head"] {
            let datagrams: Vec<Datagram<'_>> = payloads
                .iter()
                .map(|payload| Datagram {
                    to,
                    from: None,
                    prefix,
                    payload,
                })
                .collect();
            let sent = Sender::default().send(&sender, &datagrams);
            assert_eq!(
                sent,
                Sent {
                    sent: payloads.len() as u64,
                    ..Sent::default()
                }
            );
            let mut buffer = vec![0; 70_000];
            for payload in &payloads {
                let length = receiver.recv(&mut buffer).expect("a datagram");
                assert_eq!(&buffer[..length], [prefix, payload].concat());
            }
        }
    }

    #[test]
    fn an_icmp_error_costs_no_datagram() {
        // An address that no other test uses, so that nobody takes the port meanwhile.
        let gone = UdpSocket::bind("127.0.0.99:0").expect("socket");
        let address = gone.local_addr().expect("address");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("socket");
        sender.connect(address).expect("connected");
        drop(gone);
        let one = [Datagram {
            payload: b"x",
            ..Datagram::default()
        }];
        let mut run = Sender::default();
        assert_eq!(run.send(&sender, &one).sent, 1);
        std::thread::sleep(Duration::from_millis(20));
        let back = UdpSocket::bind(address).expect("back again");
        back.set_read_timeout(Some(Duration::from_secs(5))).expect("timeout");
        assert_eq!(
            run.send(&sender, &one),
            Sent {
                sent: 1,
                failed: 0,
                stale_errors: 1
            }
        );
        assert_eq!(back.recv(&mut [0; 8]).expect("it arrives"), 1);
    }
}
