//! Pages are not written to while somebody else has a handle, such as who has posted a write from them.

use std::sync::Arc;

use multinet_verbs::Pages;

fn shared(pages: &Arc<Pages>) {
    pages.bytes_mut()[0] = 1;
}

fn main() {}
