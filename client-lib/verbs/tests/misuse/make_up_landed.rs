//! That bytes have landed is said by the landing, which knows what is within it.

use multinet_verbs::{Landed, Landing};

fn made_up(landing: Landing) -> Landed {
    Landed { landing, range: 0..usize::MAX }
}

fn main() {}
