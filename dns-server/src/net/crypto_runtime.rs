//! Threads for cryptography with clients, which costs a server a hundred times what it costs a client: a flood of handshakes
//! takes these threads, and the kernel gives all others, which answer queries and probes, their share.

use std::io;
use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use tokio::runtime::{Builder, Handle, Runtime};

/// A runtime beside the main one, with threads for half of the cores.
#[derive(Debug)]
pub(crate) struct CryptoRuntime {
    handle: Handle,
    runtime: Option<Runtime>,
}

impl CryptoRuntime {
    /// # Errors
    ///
    /// If the system has no more threads.
    pub(crate) fn new(name: &'static str) -> io::Result<Self> {
        let threads = available_parallelism().map_or(1, NonZeroUsize::get).div_ceil(2);
        let runtime =
            Builder::new_multi_thread().worker_threads(threads).thread_name(name).enable_all().build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for CryptoRuntime {
    fn drop(&mut self) {
        // Waiting for its threads is not allowed where this may be.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
