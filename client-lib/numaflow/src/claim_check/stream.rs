//! The open answer to a message of MapStream.

use numaflow::mapstream::Message;
use tokio::sync::mpsc::Sender;

/// Open answer to a message. Numaflow acknowledges the message once the answer has ended, which
/// only [`end`](Self::end) does.
///
/// The SDK ends an answer when its sender is dropped, also by a panic, or when the runtime shuts
/// down. So this keeps the sender for ever if it is dropped otherwise, unless Numaflow has gone: a
/// message whose answer has not ended is delivered again.
pub(super) struct Answer(Option<Sender<Message>>);

impl Answer {
    pub(super) fn new(sender: Sender<Message>) -> Self {
        Self(Some(sender))
    }

    /// Emits a message to the next vertex. Returns whether Numaflow still listens.
    pub(super) async fn emit(&self, message: Message) -> bool {
        match &self.0 {
            Some(sender) => sender.send(message).await.is_ok(),
            None => false,
        }
    }

    /// Ends the answer, so that Numaflow acknowledges the message.
    pub(super) fn end(mut self) {
        self.0 = None;
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take().filter(|sender| !sender.is_closed()) {
            std::mem::forget(sender);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::{channel, error::TryRecvError};

    use super::*;

    #[tokio::test]
    async fn an_answer_ends_only_when_it_is_told_to() {
        let (sender, mut messages) = channel(2);
        let answer = Answer::new(sender.clone());
        assert!(answer.emit(Message::new(b"reference".to_vec())).await);
        assert_eq!(messages.recv().await.map(|message| message.value), Some(b"reference".to_vec()));
        // As by a panic.
        drop(answer);
        drop(sender);
        assert_eq!(messages.try_recv(), Err(TryRecvError::Empty));

        let (sender, mut messages) = channel(2);
        Answer::new(sender).end();
        assert_eq!(messages.recv().await, None);
    }
}
