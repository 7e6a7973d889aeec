//! Addresses that travel with the socket itself, for programs that `exec` themselves anew (sshd does for every
//! connection): a classic packet filter that passes everything, with the addresses as constants in instructions that are
//! never reached. The kernel gives the program back to whoever asks. Only made at `exec`: it costs a few microseconds.

use crate::table::Claim;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Instructions of the program.
pub(crate) const LENGTH: usize = 15;

const RETURN: u16 = 0x06;
const LOAD_CONSTANT: u16 = 0x00;
const EVERYTHING: u32 = u32::MAX;

/// What tells our program from one of the server's own.
const SIGNATURE: [u32; 2] = [0x5052_4f58, 0x594c_4942];

/// Opcode and operand of each instruction.
pub(crate) type Program = [(u16, u32); LENGTH];

pub(crate) fn encode(claim: &Claim) -> Program {
    let words = |address: SocketAddr| {
        let octets = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        let (words, _) = octets.as_chunks::<4>();
        [0, 1, 2, 3].map(|index| u32::from_be_bytes(words[index]))
    };
    let mut program = [(LOAD_CONSTANT, 0); LENGTH];
    program[0] = (RETURN, EVERYTHING);
    let ports = u32::from(claim.peer.port()) << 16 | u32::from(claim.destination.port());
    let constants = SIGNATURE
        .into_iter()
        .chain(words(claim.peer))
        .chain(words(claim.destination))
        .chain([ports]);
    for (instruction, constant) in program[1..].iter_mut().zip(constants) {
        instruction.1 = constant;
    }
    // The kernel wants a return at the end.
    program[LENGTH - 1] = (RETURN, EVERYTHING);
    program
}

pub(crate) fn decode(program: &Program) -> Option<Claim> {
    let constant = |index: usize| program[index + 1].1;
    if program[0] != (RETURN, EVERYTHING) || [constant(0), constant(1)] != SIGNATURE {
        return None;
    }
    let ip = |first: usize| {
        let mut octets = [0; 16];
        for (index, octets) in octets.chunks_exact_mut(4).enumerate() {
            octets.copy_from_slice(&constant(first + index).to_be_bytes());
        }
        Ipv6Addr::from(octets).to_canonical()
    };
    let ports = constant(10);
    Some(Claim {
        peer: SocketAddr::new(ip(2), (ports >> 16) as u16),
        destination: SocketAddr::new(ip(6), ports as u16),
    })
}
