//! Which worker gets a UDP datagram: the kernel decides by the client in the header, so that a client that comes through
//! several sockets of the balancer is always with one worker, and its server sees one socket.

use crate::sys::Instruction;

const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const TO_X: u16 = 0x07;
const XOR_X: u16 = 0xac;
const AND: u16 = 0x54;
const MULTIPLY: u16 = 0x24;
const SHIFT_RIGHT: u16 = 0x74;
const MODULO: u16 = 0x94;
const JUMP_EQUAL: u16 = 0x15;
const JUMP: u16 = 0x05;
const RETURN: u16 = 0x06;
const RETURN_A: u16 = 0x16;

/// A classic BPF program over the payload that returns the index of one of `workers` sockets.
///
/// Offsets: version 2 has its family in byte 13, IPv4 source at 16 with its port at 24, IPv6 source at 16–31 with its
/// port at 48; the Simple Proxy Protocol has the client's last four octets at 14 and its port at 34. What is neither, or
/// too short (a load beyond the end returns 0), goes to the first.
pub fn by_client(workers: u32) -> Vec<Instruction> {
    let op = |code, operand| Instruction {
        code,
        jump_true: 0,
        jump_false: 0,
        operand,
    };
    let jump = |operand, jump_true| Instruction {
        code: JUMP_EQUAL,
        jump_true,
        jump_false: 0,
        operand,
    };
    vec![
        op(LOAD_HALF, 0),
        jump(0x56ec, 12), // to 14
        op(LOAD_BYTE, 13),
        op(AND, 0xf0),
        jump(0x10, 2), // to 7
        jump(0x20, 5), // to 11
        op(RETURN, 0),
        op(LOAD_WORD, 16),
        op(TO_X, 0),
        op(LOAD_HALF, 24),
        op(JUMP, 6), // to 17
        op(LOAD_WORD, 28),
        op(TO_X, 0),
        Instruction {
            code: JUMP,
            jump_true: 0,
            jump_false: 0,
            operand: 5,
        }, // to 19
        op(LOAD_WORD, 14),
        op(TO_X, 0),
        op(LOAD_HALF, 34),
        op(MULTIPLY, 0x9e37_79b1),
        op(JUMP, 2), // to 21
        op(LOAD_HALF, 48),
        op(MULTIPLY, 0x9e37_79b1),
        op(XOR_X, 0),
        op(MULTIPLY, 0x85eb_ca6b),
        op(SHIFT_RIGHT, 16),
        op(MODULO, workers.max(1)),
        op(RETURN_A, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_protocol::{Addresses, Header, Transport, spp};
    use std::collections::HashSet;
    use std::net::SocketAddr;

    /// Runs the program as the kernel does.
    fn run(program: &[Instruction], data: &[u8]) -> u32 {
        let (mut a, mut x, mut pc) = (0u32, 0u32, 0usize);
        loop {
            let Instruction {
                code,
                jump_true,
                jump_false,
                operand,
            } = program[pc];
            pc += 1;
            let load = |length: usize| {
                let at = operand as usize;
                data.get(at..at + length)
                    .map(|bytes| bytes.iter().fold(0, |sum, &byte| sum << 8 | u32::from(byte)))
            };
            match code {
                LOAD_WORD | LOAD_HALF | LOAD_BYTE => {
                    let length = [4, 2, 1][usize::from((code - LOAD_WORD) / 8)];
                    match load(length) {
                        Some(value) => a = value,
                        None => return 0,
                    }
                }
                TO_X => x = a,
                XOR_X => a ^= x,
                AND => a &= operand,
                MULTIPLY => a = a.wrapping_mul(operand),
                SHIFT_RIGHT => a >>= operand,
                MODULO => a %= operand,
                JUMP => pc += operand as usize,
                JUMP_EQUAL => pc += usize::from(if a == operand { jump_true } else { jump_false }),
                RETURN => return operand,
                RETURN_A => return a,
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    fn datagram(client: SocketAddr, proxy: SocketAddr) -> Vec<u8> {
        let mut out = vec![0; 200];
        let length = Header::proxy(Transport::Datagram, Addresses::from_pair(client, proxy))
            .encode(&mut out)
            .expect("fits");
        out.truncate(length);
        out
    }

    #[test]
    fn clients_spread_and_stay_whatever_the_rest_says() {
        for workers in [1, 2, 3, 8] {
            let program = by_client(workers);
            for (client, proxies) in [
                ("203.0.113.7", ["198.51.100.9:53", "198.51.100.10:54"]),
                ("2001:db8::7", ["[2001:db8::9]:53", "[2001:db8::10]:54"]),
            ] {
                let ip = client.parse().expect("address");
                let mut used = [HashSet::new(), HashSet::new()];
                for port in 1000..1200 {
                    let client = SocketAddr::new(ip, port);
                    let proxies = proxies.map(|proxy| proxy.parse().expect("address"));
                    let v2 = proxies.map(|proxy| run(&program, &datagram(client, proxy)));
                    assert_eq!(v2[0], v2[1], "the same client at another place");
                    let spp = run(
                        &program,
                        &spp::Header {
                            client,
                            proxy: proxies[0],
                        }
                        .encode(),
                    );
                    used[0].insert(v2[0]);
                    used[1].insert(spp);
                }
                for used in used {
                    assert_eq!(used.len(), workers as usize, "{client} with {workers}");
                    assert!(used.iter().all(|&index| index < workers));
                }
            }
            for short in [&b""[..], b"x", b"PROXY TCP4", &[0; 13], &[0; 16]] {
                assert_eq!(run(&program, short), 0);
            }
        }
    }
}
