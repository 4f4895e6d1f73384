//! Questions for payloads that are not answered yet.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::answer::{ANSWER, PayloadAnswer, Status};
use crate::error::DialError;
use crate::listener::Received;

/// Answer to a question, with the payload if the pod has it.
pub(super) enum PodReply {
    Here(Received),
    Unknown,
    TooLarge(u64),
    Taken,
}

/// Reply of a pod, or why it could not be asked.
pub(super) type PodOutcome = Result<PodReply, Arc<DialError>>;

/// A question that a pod has been asked.
pub(super) struct Asked {
    /// Number of the connection.
    pub(super) link: u64,
    pub(super) pod: SocketAddr,
    pub(super) reply: oneshot::Sender<PodOutcome>,
    /// Place among the questions that one pod is asked at a time.
    pub(super) _place: OwnedSemaphorePermit,
}

/// All questions that are not answered yet, by their numbers.
#[derive(Default)]
pub(super) struct Pending(Mutex<HashMap<u64, Asked>>);

impl Pending {
    pub(super) fn add(&self, number: u64, asked: Asked) {
        self.0.lock().insert(number, asked);
    }

    /// Drops a question, which will not be answered.
    pub(super) fn remove(&self, number: u64) {
        let gone = self.0.lock().remove(&number);
        drop(gone);
    }

    /// Drops the questions of a connection that has ended.
    pub(super) fn forget(&self, link: u64) {
        let gone: Vec<Asked> =
            self.0.lock().extract_if(|_, asked| asked.link == link).map(|(_, asked)| asked).collect();
        // Their tasks run at once, so no lock is held.
        drop(gone);
    }

    /// Hands a frame to the task that has asked for it. A pod that answers a question which it was
    /// not asked is cut off.
    pub(super) fn answer(&self, mut frame: Received) {
        let Some(PayloadAnswer { number, status }) = PayloadAnswer::decode(frame.metadata()) else {
            return frame.refuse_answer();
        };
        let asked = {
            let mut pending = self.0.lock();
            let is_asked = pending.get(&number).is_some_and(|it| it.pod == frame.sender().address());
            if is_asked { pending.remove(&number) } else { None }
        };
        let Some(Asked { reply, .. }) = asked else { return frame.refuse_answer() };
        frame.hide_metadata(ANSWER);
        // The task may have gone.
        let _ = match status {
            Status::Here => reply.send(Ok(PodReply::Here(frame))),
            Status::Unknown => {
                frame.acknowledge();
                reply.send(Ok(PodReply::Unknown))
            }
            Status::TooLarge(length) => {
                frame.acknowledge();
                reply.send(Ok(PodReply::TooLarge(length)))
            }
            Status::Taken => {
                frame.acknowledge();
                reply.send(Ok(PodReply::Taken))
            }
        };
    }
}
