//! Questions of a fetcher that wait to be sent.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::reference::OfferId;
use crate::stream::{Body, Message, MessageSource};
use crate::wire::Header;

/// Queue of questions. Whoever asks bounds their number.
#[derive(Default)]
pub(super) struct Asks(Mutex<VecDeque<Message>>);

impl Asks {
    pub(super) fn push(&self, number: u64, id: &OfferId) {
        let id = Bytes::copy_from_slice(id.as_str().as_bytes());
        let header = Header::Ask { number, id: id.len() }.encode();
        self.0.lock().push_back(Message { header, body: Body::Bytes(id) });
    }
}

impl MessageSource for Asks {
    fn next(&self) -> Option<Message> {
        self.0.lock().pop_front()
    }

    fn has_work(&self) -> bool {
        !self.0.lock().is_empty()
    }
}
