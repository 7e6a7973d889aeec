//! Shared memory between two processes: this one serves, a second one (this test program again) echoes.

use std::env;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use e2d2::buffer::PacketBuffer;
use e2d2::native::{DpdkPort, DpdkQueue, MbufPool, PortConfig, PortError};
use e2d2::port::{Port, PortId};

use crate::support::{Burst, eal, frame, packet, pool, unique};

/// Names the socket to the second process.
const SOCKET: &str = "E2D2_TEST_MEMIF_SOCKET";
const PACKETS: u32 = 4096;
const PATIENCE: Duration = Duration::from_secs(30);

fn open(role: &str, socket: &str, pool: &MbufPool) -> Result<(DpdkPort, DpdkQueue), PortError> {
    let device = format!("net_memif_{},role={role},socket={socket}", unique("t"));
    let config = PortConfig {
        mtu: 9000,
        link_wait: Duration::ZERO,
        ..PortConfig::new(PortId(0), device.parse()?)
    };
    let (port, mut queues) = DpdkPort::open(&eal(), &config, &[pool])?;
    Ok((port, queues.remove(0)))
}

/// Ends the second process whatever happens.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn socket() -> PathBuf {
    env::temp_dir().join(format!("{}-{}.sock", unique("e2d2-memif-"), std::process::id()))
}

#[test]
fn memif_carries_packets_between_processes() {
    let socket = socket();
    let mut pool = pool(4095, 9000);
    {
        let (port, mut queue) = open("server", &socket.to_string_lossy(), &pool).expect("a server needs nobody");
        assert!(!port.is_link_up(), "nobody is there yet");
        let mut peer = Peer(
            Command::new(env::current_exe().expect("this program"))
                .args(["--exact", "memif::echo", "--ignored", "--nocapture"])
                .env(SOCKET, &socket)
                .stdin(Stdio::piped())
                // Its count of passed tests would be taken for this program's.
                .stdout(Stdio::null())
                .spawn()
                .expect("this program runs"),
        );
        assert!(port.wait_for_link(PATIENCE), "the other process connects");
        let length = |number: u32| if number.is_multiple_of(2) { 60 } else { 9014 };
        let (mut sent, mut back, start) = (0, 0, Instant::now());
        while back < PACKETS {
            assert!(start.elapsed() < PATIENCE, "{back} of {sent} packets came back");
            // A window, because what the other side cannot send back it drops.
            let burst: Burst = (sent..PACKETS.min(sent + 32))
                .map(|number| packet(&mut pool, &frame(number, length(number))))
                .collect();
            let mut burst = if sent - back < 256 { burst } else { Burst::new() };
            let all = burst.len() as u32;
            queue.transmit(&mut burst);
            sent += all - burst.len() as u32;
            let mut into = Burst::new();
            queue.receive(&mut into);
            for packet in into {
                let number = u32::from_be_bytes(packet.data()[..4].try_into().expect("four bytes"));
                assert_eq!((number, packet.len()), (back, length(back)), "in order");
                assert!(packet.data() == frame(back, length(back)), "packet {back} is intact");
                back += 1;
            }
        }
        // That all have come: it waits for the end of its input. Waiting for a child closes its input first.
        let status = peer.0.wait().expect("the other process ends");
        assert!(status.success());
    }
    let _ = std::fs::remove_file(&socket);
    assert_eq!(pool.in_use(), 0);
}

#[test]
#[ignore = "the second process of memif_carries_packets_between_processes"]
fn echo() {
    let Ok(socket) = env::var(SOCKET) else { return };
    let pool = pool(4095, 9000);
    {
        let (port, mut queue) = open("client", &socket, &pool).expect("the server is there");
        assert!(port.wait_for_link(PATIENCE));
        let (mut echoed, start) = (0, Instant::now());
        while echoed < PACKETS {
            assert!(start.elapsed() < PATIENCE, "{echoed} packets came");
            let mut burst = Burst::new();
            queue.receive(&mut burst);
            echoed += burst.len() as u32;
            while !burst.is_empty() {
                queue.transmit(&mut burst);
            }
        }
        // The server has to see the last of them before the rings go away, and says so by ending our input.
        std::io::stdin()
            .read_to_end(&mut Vec::new())
            .expect("the server is there");
    }
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_client_without_a_server_says_so() {
    let pool = pool(255, 9000);
    let socket = socket();
    let error = open("client", &socket.to_string_lossy(), &pool).expect_err("nobody serves");
    assert!(matches!(error, PortError::NoServer { .. }), "{error}");
    std::fs::write(&socket, "no socket").expect("a temporary file");
    let error = open("client", &socket.to_string_lossy(), &pool).expect_err("nobody serves");
    std::fs::remove_file(&socket).expect("written above");
    assert!(
        matches!(
            error,
            PortError::Setup {
                step: "rte_eth_dev_start",
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("Failed to connect socket"), "{error}");
    assert_eq!(pool.in_use(), 0);
}
