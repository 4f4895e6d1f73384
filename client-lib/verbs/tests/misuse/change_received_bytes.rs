//! Received bytes are read-only.

use multinet_verbs::ReceivedBytes;

fn change(received: &mut ReceivedBytes) {
    received[0] = 1;
}

fn main() {}
