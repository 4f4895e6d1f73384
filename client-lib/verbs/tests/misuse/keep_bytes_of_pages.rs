//! What was read from pages does not outlive them.

use multinet_verbs::Pages;

fn beyond(pages: Pages) -> u8 {
    let bytes = pages.bytes();
    drop(pages);
    bytes[0]
}

fn main() {}
