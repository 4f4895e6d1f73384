//! Bytes are not borrowed from pages for longer than the pages live.

use multinet_verbs::Pages;

fn beyond(pages: Pages) -> u8 {
    let bytes = pages.bytes();
    drop(pages);
    bytes[0]
}

fn main() {}
