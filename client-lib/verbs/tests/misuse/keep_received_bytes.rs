//! Received bytes are not borrowed for longer than their handle lives: the registration may end
//! with it.

use multinet_verbs::{Error, ReceiveBuffer};

fn beyond(buffer: ReceiveBuffer) -> Result<&'static [u8], Error> {
    let received = buffer.received(0..1)?;
    Ok(&received)
}

fn main() {}
