//! UDP load and the servers it goes to.

use crate::tcp::Server;
use mmproxy::sys::{BATCH, RecvBatch};
use proxy_protocol::{Addresses, Header, Transport};
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the clients do, all over one socket of the balancer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// One datagram of each flow under way at a time; counts answers.
    Requests { flows: usize, payload: usize },
    /// As many as the socket takes; the server counts.
    Flood { flows: usize, payload: usize },
}

fn bound(port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(("127.0.0.1", port))?;
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 8 << 20)?;
    rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, 8 << 20)?;
    Ok(socket)
}

fn wait(socket: &UdpSocket, time: Duration) {
    let mut poll = [PollFd::new(socket, PollFlags::IN)];
    if let Ok(time) = rustix::time::Timespec::try_from(time) {
        let _ = rustix::event::poll(&mut poll, Some(&time));
    }
}

/// Calls `each` with every batch that comes to a port.
fn serve(port: u16, mut each: impl FnMut(&UdpSocket, &RecvBatch, usize) + Send + 'static) -> io::Result<Server> {
    let socket = bound(port)?;
    let (server, bell) = Server::new()?;
    std::thread::spawn(move || {
        let mut batch = RecvBatch::new();
        loop {
            match batch.receive(socket.as_fd(), 0, BATCH) {
                Ok(count) => each(&socket, &batch, count),
                Err(_) => {
                    let mut poll = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&*bell, PollFlags::IN)];
                    let _ = rustix::event::poll(&mut poll, None);
                    if !poll[1].revents().is_empty() {
                        return;
                    }
                }
            }
        }
    });
    Ok(server)
}

/// Sends back whatever comes. Without segmentation, as a plain server would.
pub(crate) fn serve_echo(port: u16) -> io::Result<Server> {
    serve(port, |socket, batch, count| {
        let parts: Vec<[io::IoSlice<'_>; 1]> = (0..count)
            .map(|slot| [io::IoSlice::new(batch.message(slot).data)])
            .collect();
        let replies: Vec<mmproxy::sys::Outgoing<'_>> = (0..count)
            .map(|slot| mmproxy::sys::Outgoing {
                parts: &parts[slot],
                to: batch.message(slot).from,
                from: None,
                segment: None,
            })
            .collect();
        let mut sent = 0;
        while sent < count {
            match mmproxy::sys::send_messages(socket.as_fd(), &replies[sent..]) {
                Ok(more) => sent += more,
                // What cannot be sent is lost, as datagrams are.
                Err(_) => sent += 1,
            }
        }
    })
}

/// Counts what comes.
pub(crate) fn serve_sink(port: u16, count: Arc<AtomicU64>) -> io::Result<Server> {
    serve(port, move |_, _, received| {
        count.fetch_add(received as u64, Ordering::Relaxed);
    })
}

/// The datagrams of all flows, each with its client's header if wanted.
fn datagrams(flows: usize, payload: usize, with_header: bool) -> Vec<Vec<u8>> {
    let destination = SocketAddr::from(([198, 51, 100, 9], 443));
    let one = |flow: usize| {
        let client = SocketAddr::from(([203, 0, 113, (flow % 250 + 1) as u8], 4000 + (flow / 250) as u16));
        let mut bytes = Vec::new();
        if with_header {
            let header = Header::proxy(Transport::Datagram, Addresses::from_pair(client, destination));
            bytes.resize(header.encoded_len(), 0);
            // The buffer has the length that the header asked for.
            let _ = header.encode(&mut bytes);
        }
        bytes.extend((flow as u32).to_be_bytes());
        bytes.resize(bytes.len() + payload - 4, b'x');
        bytes
    };
    (0..flows).map(one).collect()
}

/// Generates load until `stop`.
pub(crate) fn generate(
    load: Load,
    target: SocketAddr,
    with_header: bool,
    count: &AtomicU64,
    stop: &AtomicBool,
) -> io::Result<()> {
    let socket = bound(0)?;
    socket.connect(target)?;
    match load {
        Load::Flood { flows, payload } => {
            let datagrams = datagrams(flows, payload, with_header);
            while !stop.load(Ordering::Relaxed) {
                send_all(&socket, datagrams.iter().map(Vec::as_slice));
            }
            Ok(())
        }
        Load::Requests { flows, payload } => {
            requests(&socket, &datagrams(flows, payload, with_header), payload, count, stop)
        }
    }
}

/// Single datagrams, many in a system call: what the network would bring.
fn send_all<'a>(socket: &UdpSocket, datagrams: impl Iterator<Item = &'a [u8]>) {
    let parts: Vec<[io::IoSlice<'_>; 1]> = datagrams.map(|bytes| [io::IoSlice::new(bytes)]).collect();
    let messages: Vec<mmproxy::sys::Outgoing<'_>> = parts
        .iter()
        .map(|parts| mmproxy::sys::Outgoing {
            parts,
            to: None,
            from: None,
            segment: None,
        })
        .collect();
    let mut sent = 0;
    while sent < messages.len() {
        match mmproxy::sys::send_messages(socket.as_fd(), &messages[sent..]) {
            Ok(more) => sent += more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(_) => sent += 1,
        }
    }
}

fn requests(
    socket: &UdpSocket,
    datagrams: &[Vec<u8>],
    payload: usize,
    count: &AtomicU64,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut batch = RecvBatch::new();
    let mut sent_at = vec![Instant::now(); datagrams.len()];
    send_all(socket, datagrams.iter().map(Vec::as_slice));
    while !stop.load(Ordering::Relaxed) {
        let received = match batch.receive(socket.as_fd(), 0, BATCH) {
            Ok(received) => received,
            Err(_) => {
                wait(socket, Duration::from_millis(20));
                // What was lost is sent again.
                let lost = sent_at
                    .iter_mut()
                    .enumerate()
                    .filter(|(_, at)| at.elapsed() > Duration::from_millis(100));
                let lost: Vec<usize> = lost.map(|(flow, at)| (flow, *at = Instant::now()).0).collect();
                send_all(socket, lost.iter().map(|&flow| datagrams[flow].as_slice()));
                continue;
            }
        };
        let now = Instant::now();
        let mut again = Vec::with_capacity(received);
        for slot in 0..received {
            let data = batch.message(slot).data;
            // The flow's number, at the end that has no header.
            let answer = data
                .len()
                .checked_sub(payload)
                .and_then(|at| data[at..].first_chunk::<4>());
            let flow = answer.map_or(usize::MAX, |bytes| u32::from_be_bytes(*bytes) as usize);
            if let Some(at) = sent_at.get_mut(flow) {
                *at = now;
                again.push(flow);
            }
        }
        count.fetch_add(again.len() as u64, Ordering::Relaxed);
        send_all(socket, again.iter().map(|&flow| datagrams[flow].as_slice()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_one_by_one() {
        // A server that counts as well, on a port of the system's choice.
        let server = UdpSocket::bind("127.0.0.1:0").expect("socket");
        let target = server.local_addr().expect("address");
        server
            .set_read_timeout(Some(Duration::from_millis(100)))
            .expect("timeout");
        let stop = Arc::new(AtomicBool::new(false));
        let count = Arc::new(AtomicU64::new(0));
        let client = {
            let (stop, count) = (Arc::clone(&stop), Arc::clone(&count));
            std::thread::spawn(move || generate(Load::Requests { flows: 8, payload: 64 }, target, false, &count, &stop))
        };
        let begin = Instant::now();
        let mut answered = 0;
        let mut buffer = [0; 2000];
        while begin.elapsed() < Duration::from_millis(300) {
            if let Ok((length, from)) = server.recv_from(&mut buffer) {
                assert_eq!(length, 64);
                server.send_to(&buffer[..length], from).expect("sent");
                answered += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
        client.join().expect("thread").expect("load");
        let counted = count.load(Ordering::Relaxed);
        assert!(
            counted <= answered && counted + 16 >= answered,
            "{counted} of {answered}"
        );
    }
}
