//! The device of a host: frames that have come, and frames that are to leave.

use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use std::collections::VecDeque;

/// Frames on their way into and out of a host.
pub(super) struct Wire {
    pub received: VecDeque<Vec<u8>>,
    pub sent: Vec<Vec<u8>>,
    mtu: usize,
}

impl Wire {
    /// An idle one; `mtu` is the largest IP packet.
    pub(super) fn new(mtu: u16) -> Self {
        Wire {
            received: VecDeque::new(),
            sent: Vec::new(),
            mtu: usize::from(mtu),
        }
    }
}

impl Device for Wire {
    type RxToken<'a> = Received;
    type TxToken<'a> = ToSend<'a>;

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        // smoltcp counts the Ethernet header.
        capabilities.max_transmission_unit = self.mtu + 14;
        capabilities
    }

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Received, ToSend<'_>)> {
        let frame = self.received.pop_front()?;
        Some((Received(frame), ToSend(&mut self.sent)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<ToSend<'_>> {
        Some(ToSend(&mut self.sent))
    }
}

pub(super) struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

pub(super) struct ToSend<'a>(&'a mut Vec<Vec<u8>>);

impl TxToken for ToSend<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut frame = vec![0; length];
        let result = f(&mut frame);
        self.0.push(frame);
        result
    }
}
