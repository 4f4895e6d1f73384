//! Control messages that a receiver sends by RDMA.

use std::sync::Arc;

use super::end_reason::EndReason;
use super::shared::Link;
use crate::channel::DataChannel;
use crate::rdma::{CompletionHandler, QueuePair, Violation};
use crate::wire::{ControlBody, Header, WireError};

/// Lets the queue pair's completion thread call this link, if frames go by RDMA.
pub(super) fn attach(link: &Arc<Link>) {
    if let Some(pair) = link.pair() {
        let by: Arc<dyn CompletionHandler> = Arc::<Link>::clone(link);
        pair.watch(Arc::downgrade(&by));
    }
}

/// Handles the completions that the link's queue pair has already, and then no more.
pub(super) fn drain(link: &Link) {
    if let Some(pair) = link.pair() {
        pair.poll_all(|| link.poll());
        pair.stop();
    }
}

impl CompletionHandler for Link {
    fn poll(&self) -> bool {
        self.pair().is_some_and(|pair| pair.poll(self, |by, entry| on_immediate(self, pair, by, entry)))
    }

    fn arm(&self) {
        if let Some(pair) = self.pair() {
            pair.arm();
        }
    }

    fn fail(&self, reason: &str) {
        if let Some(pair) = self.pair() {
            pair.fail_with_reason(reason);
        }
    }
}

impl Link {
    fn pair(&self) -> Option<&QueuePair<EndReason>> {
        match self.channel.get() {
            Some(DataChannel::Rdma(pair, _)) => Some(pair),
            _ => None,
        }
    }
}

fn on_immediate(link: &Link, pair: &QueuePair<EndReason>, by: u8, entry: u32) -> Result<(), EndReason> {
    if by != 0 {
        return Err(Violation::QueuePair(by).into());
    }
    let message = pair.read_ring_entry(entry)?;
    // An entry has always room for a header.
    let Some((header, body)) = message.split_first_chunk() else { return Ok(()) };
    let Header::Control(control) = Header::decode(header)? else { return Err(EndReason::UnexpectedFrame) };
    let (what, length, most) = ("control message", control.body(), body.len());
    if length > most {
        return Err(WireError::TooLong { what, length, most }.into());
    }
    let body = ControlBody::new(&control, body);
    // The queue pair must know the free slots first: the state machine then sends as many frames.
    pair.release_slots(body.slots())?;
    link.apply_control(&control, body)?;
    Ok(())
}
