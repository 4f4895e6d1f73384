//! What a peer has written is for reading.

use multinet_verbs::Landed;

fn change(landed: &mut Landed) {
    landed[0] = 1;
}

fn main() {}
