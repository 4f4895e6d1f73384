//! Threads for cryptographic handshakes. A handshake costs the server about a hundred times what it
//! costs the client. A flood of handshakes takes only these threads; the kernel still gives the
//! threads that answer queries and probes their share of the cores.

use std::io;
use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use tokio::runtime::{Builder, Handle, Runtime};

/// A tokio runtime for handshakes beside the main one, with threads for half of the cores.
#[derive(Debug)]
pub(crate) struct CryptoRuntime {
    handle: Handle,
    runtime: Option<Runtime>,
}

impl CryptoRuntime {
    /// Starts the threads, which are all called `name`.
    ///
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
        // `shutdown_background` does not wait: blocking here could panic, since the caller may be
        // an async task.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
