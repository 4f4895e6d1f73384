//! Start of a listener: its tasks, with or without a port.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use tracing::info;

use super::budget::Budget;
use super::fetchers::{ArrivedFetcher, Fetchers};
use super::limits::Limits;
use super::{Answers, Listener, ListenerBuilder, ListenerHandle, ListenerState, Received, accept, room};
use crate::error::BindError;
use crate::nic::Keeper;

impl ListenerBuilder {
    /// Starts to listen for peers that come to fetch payloads. Returns the queue that they go to.
    pub(crate) fn bind_for_fetchers(self) -> Result<(Listener, mpsc::Receiver<ArrivedFetcher>), BindError> {
        let (fetchers, receiver) = Fetchers::new(self.limits.connections);
        let sockets = self.sockets()?;
        let listener = self.start(sockets, Some(fetchers), None)?;
        info!(addresses = ?listener.handle.addresses, "listening for fetchers");
        Ok((listener, receiver))
    }

    /// Creates a listener without a port. It receives on the connections that
    /// [`connected`](Listener::connected) is called with, and hands the frames to `answers` at
    /// once.
    pub(crate) fn without_port(
        self,
        answers: impl Fn(Received) + Send + Sync + 'static,
    ) -> Result<Listener, BindError> {
        self.start(Vec::new(), None, Some(Box::new(answers)))
    }

    pub(super) fn start(
        self,
        listening: Vec<TcpListener>,
        fetchers: Option<Fetchers>,
        answers: Option<Answers>,
    ) -> Result<Listener, BindError> {
        let budget = self.limits.memory.map_or_else(Budget::read, Budget::given);
        self.check(&budget)?;
        let mut sockets = Vec::new();
        let mut addresses = Vec::new();
        for socket in listening {
            let address = socket.local_addr().map_err(BindError::Interfaces)?;
            let keeper = match self.allow_default_network {
                true => None,
                false => Some(Keeper::new().map_err(BindError::Interfaces)?),
            };
            sockets.push((Arc::new(socket), keeper));
            addresses.push(address);
        }
        let tasks = TaskTracker::new();
        let shared = Arc::new(ListenerState::new(self, budget, fetchers, answers));
        let listening = sockets.iter().map(|(socket, _)| Arc::downgrade(socket)).collect();
        for (socket, keeper) in sockets {
            tasks.spawn(accept::accept(socket, keeper, Arc::clone(&shared), tasks.clone()));
        }
        tasks.spawn({
            let (flusher, shutdown) = (Arc::clone(&shared.flusher), shared.shutdown.clone());
            async move {
                shutdown.run_until_cancelled(flusher.run()).await;
            }
        });
        tasks.spawn({
            let shared = Arc::clone(&shared);
            async move {
                shared.shutdown.run_until_cancelled(shared.log_limit.run()).await;
            }
        });
        for memory in [&shared.memory].into_iter().chain(&shared.gpu_memory).map(Arc::clone) {
            let (shutdown, slots) = (shared.shutdown.clone(), shared.config.limits.slots);
            tasks.spawn(async move {
                shutdown.run_until_cancelled(room::tend(&memory, slots)).await;
            });
        }
        Ok(Listener {
            handle: Arc::new(ListenerHandle {
                shared,
                addresses,
                sockets: listening,
                process: std::process::id(),
                tasks,
            }),
        })
    }

    fn check(&self, budget: &Budget) -> Result<(), BindError> {
        let Limits { frame_size, slots, connections, .. } = self.limits;
        match () {
            () if frame_size == 0 => Err(BindError::Limit("frame_size must be at least 1 byte")),
            () if slots == 0 => Err(BindError::Limit("slots must be at least 1")),
            () if connections == 0 => Err(BindError::Limit("max_connections must be at least 1")),
            () if budget.bytes < frame_size as usize => {
                Err(BindError::Memory { frame_size, memory: budget.to_string() })
            }
            () => Ok(()),
        }
    }
}
