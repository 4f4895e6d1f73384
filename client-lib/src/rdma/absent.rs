//! The stand-in for RDMA in a build without the feature `rdma`: its types have no values, and
//! preparing an end fails with the reason.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use multinet_memory::{Gpu, GpuSlice};

use crate::handshake::RdmaEnd;
use crate::stream::MessageSource;
use crate::transport::Rdma;

#[derive(Debug)]
pub(crate) struct RdmaDevices;

#[derive(Debug, thiserror::Error)]
#[error("this program was built without it (feature rdma of multinet-client)")]
pub(crate) struct Unusable;

#[expect(dead_code, reason = "no end is prepared for a role")]
pub(crate) enum Role {
    Sender,
    Receiver { slots: u32, frame_size: u32, extra_pairs: usize, gpu: Option<(Arc<dyn Gpu>, u32)> },
}

pub(crate) enum ReceiveMemory {}

pub(crate) enum Prepared {}

pub(crate) struct QueuePair<E>(Infallible, PhantomData<E>);

pub(crate) enum ReceivedFrame {}

pub(crate) struct LocalSlots(Infallible);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Violation {}

#[derive(Debug, thiserror::Error)]
pub(crate) enum QueuePairError {}

impl RdmaDevices {
    pub(crate) fn new(_options: Rdma) -> Self {
        Self
    }

    pub(crate) fn prepare(
        &self,
        _address: IpAddr,
        _peer: IpAddr,
        _role: Role,
        _spare: Option<ReceiveMemory>,
    ) -> Result<Prepared, Unusable> {
        Err(Unusable)
    }
}

impl Unusable {
    pub(crate) fn is_lasting(&self) -> bool {
        true
    }

    pub(crate) fn reason(&self) -> String {
        self.to_string()
    }
}

impl Prepared {
    pub(crate) fn into_spare(self) -> ReceiveMemory {
        match self {}
    }

    pub(crate) fn end(&self) -> &RdmaEnd {
        match *self {}
    }

    pub(crate) fn connect<E>(
        self,
        _end: &RdmaEnd,
        _address: IpAddr,
        _frame_size: u32,
        _patience: Duration,
    ) -> Result<QueuePair<E>, Unusable> {
        match self {}
    }
}

impl<E> QueuePair<E> {
    pub(crate) fn local_slots(&self) -> LocalSlots {
        match self.0 {}
    }

    pub(crate) fn try_flush(&self, _source: &impl MessageSource) {
        match self.0 {}
    }

    pub(crate) fn try_flush_later(&self, _source: &impl MessageSource) {
        match self.0 {}
    }

    pub(crate) async fn run(&self, _source: &impl MessageSource) -> E {
        match self.0 {}
    }

    pub(crate) async fn flush(&self, _source: &impl MessageSource) {
        match self.0 {}
    }

    pub(crate) async fn hang_up(&self) {
        match self.0 {}
    }
}

impl ReceivedFrame {
    pub(crate) fn slot(&self) -> u16 {
        match *self {}
    }

    pub(crate) fn prefix(&self) -> &[u8] {
        match *self {}
    }

    pub(crate) fn payload(&self) -> &[u8] {
        match *self {}
    }

    pub(crate) fn gpu(&self) -> Option<&GpuSlice> {
        match *self {}
    }
}

impl LocalSlots {
    pub(crate) fn is_idle(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn peak(&self) -> u32 {
        match self.0 {}
    }

    pub(crate) fn forget_peak(&mut self) {
        match self.0 {}
    }

    pub(crate) fn free(&mut self, _slot: u16) {
        match self.0 {}
    }

    pub(crate) fn take_freed(&mut self) -> Option<u16> {
        match self.0 {}
    }
}
