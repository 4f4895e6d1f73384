//! The test write of a new connection. It shows that the path works before a frame depends on it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use multinet_verbs::Write;

use super::QueuePair;
use crate::rdma::layout::Immediate;
use crate::rdma::stripes::WorkRequestId;
use crate::rdma::unusable::QueuePairError;
use crate::rdma::unusable::Unusable;

/// The longest wait for the completions. A device gives up its retransmissions earlier.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The time between two polls for the completion of the test write.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

impl<E> QueuePair<E> {
    /// Writes `length` bytes by every queue pair, to memory of the peer that holds no frame yet,
    /// and waits until the peer's device has acknowledged them. It blocks: not for an async task.
    pub(in crate::rdma) fn ping(&self, length: usize, patience: Duration) -> Result<(), Unusable> {
        let patience = patience.min(TIMEOUT);
        self.post_ping(length)?;
        let begun = Instant::now();
        let mut awaited = 1 + self.extra_pairs;
        while awaited > 0 {
            if self.poll_ping()? {
                awaited -= 1;
            } else if begun.elapsed() > patience {
                return Err(Unusable::Silent { names: self.names.clone(), after: patience });
            } else {
                sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    fn post_ping(&self, length: usize) -> Result<(), QueuePairError> {
        let Some(request) = self.ledger.lock().queue.post(None, 0, true) else { return Ok(()) };
        let sge = Some((&self.local.staging, 0..length.min(self.peer.layout.stride)));
        let ping = Write { sge, ..self.immediate(request, Immediate::Ping) };
        for pair in 0..self.extra_pairs {
            // At most 7.
            let id = WorkRequestId::Stripe { pair: pair as u8, number: 0 }.encode();
            self.post(pair + 1, &[Write { id, is_signalled: true, ..ping.clone() }])?;
        }
        if let Some(payloads) = &self.peer.payloads {
            let sge = Some((&self.local.staging, 0..length.min(payloads.stride)));
            let remote = payloads.address;
            self.post(0, &[Write { sge, remote, immediate: None, is_signalled: false, ..ping.clone() }])?;
        }
        self.post(0, &[ping])
    }

    /// Takes one completion, if there is one. Returns whether it was the test write of a queue
    /// pair: [`ping`](Self::ping) awaits one for each.
    fn poll_ping(&self) -> Result<bool, Unusable> {
        let Some(completion) = self.local.completions.poll()? else { return Ok(false) };
        match completion.status {
            Err(status) => Err(Unusable::Ping(self.root_failure(&status, Vec::new()))),
            Ok(()) => match WorkRequestId::decode(completion.id) {
                WorkRequestId::Receive(_) => Err(Unusable::Peer("the peer sent a message too early")),
                WorkRequestId::Stripe { .. } => Ok(true),
                WorkRequestId::Message(number) => {
                    self.ledger.lock().queue.completed(number).for_each(drop);
                    Ok(true)
                }
            },
        }
    }
}
