//! RDMA with the kernel's verbs, over soft-RoCE in a guest.

mod docs;
mod doctor;
mod fallback;
mod gpu;
mod guest;
mod hostile;
mod link;
mod linking;
mod peers;
mod turmoil;
mod verbs;

use std::time::Duration;

use multinet_tests::guest::LINK;

/// How long a guest may take with its script. On a machine that does nothing else it takes about ten seconds.
const BOUND: Duration = Duration::from_secs(600);
