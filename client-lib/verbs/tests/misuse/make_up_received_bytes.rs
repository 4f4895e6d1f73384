//! Only a receive buffer makes received bytes, since it knows which ranges lie within it.

use multinet_verbs::{ReceiveBuffer, ReceivedBytes};

fn made_up(buffer: ReceiveBuffer) -> ReceivedBytes {
    ReceivedBytes { buffer, range: 0..usize::MAX }
}

fn main() {}
