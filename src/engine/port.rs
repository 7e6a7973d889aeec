//! A port as the graph uses it: as it is, or one VLAN of it.

use std::rc::Rc;

use arrayvec::ArrayVec;
use e2d2::BURST;
use e2d2::fate::GraphCounters;
use e2d2::port::{Capabilities, Port, PortId};
use e2d2::ports::{VlanId, VlanPort};
use e2d2::wire::MacAddr;

use crate::stages::Stages;
use splice::stage::WorkStage;

/// Either kind of port. The branch is the same for every burst of a port, so it costs a predicted jump.
pub(super) enum EnginePort<P> {
    Plain(P),
    Vlan(VlanPort<P>),
}

impl<P: Port> EnginePort<P> {
    /// The port, or its VLAN of this number.
    pub(super) fn new(port: P, vlan: Option<u16>, counters: Rc<GraphCounters>) -> Result<Self, String> {
        let Some(number) = vlan else {
            return Ok(Self::Plain(port));
        };
        let id = VlanId::try_from(number).map_err(|error| error.to_string())?;
        Ok(Self::Vlan(VlanPort::new(port, id, counters)))
    }

    /// The port itself.
    pub(super) fn inner(&self) -> &P {
        match self {
            Self::Plain(port) => port,
            Self::Vlan(vlan) => vlan.port(),
        }
    }
}

impl<P: Port> Port for EnginePort<P> {
    type Buffer = P::Buffer;

    fn id(&self) -> PortId {
        self.inner().id()
    }

    fn mac(&self) -> MacAddr {
        self.inner().mac()
    }

    fn mtu(&self) -> u16 {
        match self {
            Self::Plain(port) => port.mtu(),
            Self::Vlan(port) => port.mtu(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        match self {
            Self::Plain(port) => port.capabilities(),
            Self::Vlan(port) => port.capabilities(),
        }
    }

    #[inline]
    fn receive(&mut self, into: &mut ArrayVec<P::Buffer, BURST>) -> usize {
        match self {
            Self::Plain(port) => port.receive(into),
            Self::Vlan(port) => port.receive(into),
        }
    }

    #[inline]
    fn transmit(&mut self, from: &mut ArrayVec<P::Buffer, BURST>) -> usize {
        match self {
            Self::Plain(port) => port.transmit(from),
            Self::Vlan(port) => port.transmit(from),
        }
    }
}

/// The same, with its calls as stages of whoever counts a core's time by them.
pub(super) struct StagedPort<P, C> {
    port: EnginePort<P>,
    stages: C,
}

impl<P: Port, C: Stages> StagedPort<P, C> {
    pub(super) fn new(port: EnginePort<P>, stages: C) -> Self {
        Self { port, stages }
    }

    /// The port itself.
    pub(super) fn inner(&self) -> &P {
        self.port.inner()
    }
}

impl<P: Port, C: Stages> Port for StagedPort<P, C> {
    type Buffer = P::Buffer;

    fn id(&self) -> PortId {
        self.port.id()
    }

    fn mac(&self) -> MacAddr {
        self.port.mac()
    }

    fn mtu(&self) -> u16 {
        self.port.mtu()
    }

    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }

    #[inline]
    fn receive(&mut self, into: &mut ArrayVec<P::Buffer, BURST>) -> usize {
        self.stages.enter(WorkStage::Receive);
        let received = self.port.receive(into);
        self.stages.received(received);
        // What has come is parsed next.
        self.stages.enter(WorkStage::Parse);
        received
    }

    #[inline]
    fn transmit(&mut self, from: &mut ArrayVec<P::Buffer, BURST>) -> usize {
        self.stages.enter(WorkStage::Send);
        let sent = self.port.transmit(from);
        self.stages.enter(WorkStage::Rest);
        sent
    }
}
