//! Pages are not written to while another handle exists, such as that of a posted write.

use std::sync::Arc;

use multinet_verbs::Pages;

fn shared(pages: &Arc<Pages>) {
    pages.bytes_mut()[0] = 1;
}

fn main() {}
