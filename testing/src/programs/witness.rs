//! Client that queries all the time while a test causes faults.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::ask::ask_udp;

/// Pause between two queries.
const PAUSE: Duration = Duration::from_millis(10);

/// Client that sends one query again and again until it gets a wrong answer or none, or is stopped.
#[derive(Debug)]
pub struct Witness {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<usize>>,
}

impl Witness {
    /// Starts to query `server`. Every answer must have these data, in any order.
    pub fn of(server: SocketAddr, name: &str, rtype: &'static str, data: &[&str]) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let name = name.to_owned();
        let mut data: Vec<_> = data.iter().map(|&data| data.to_owned()).collect();
        data.sort_unstable();
        let task = tokio::spawn(async move {
            let mut count = 0;
            loop {
                let reply =
                    ask_udp(server, &name, rtype).await.with_context(|| format!("after {count} answers"))?;
                ensure!(
                    reply.rcode() == "NOERROR" && reply.data() == data,
                    "wrong answer after {count} right ones; expected {data:?}:\n{}",
                    reply.text("")
                );
                count += 1;
                if tokio::time::timeout(PAUSE, &mut stopped).await.is_ok() {
                    return Ok(count);
                }
            }
        });
        Self { stop, task }
    }

    /// Stops the queries. Fails if an answer was wrong or missing, or if there was none at all.
    pub async fn stop(self) -> Result<()> {
        // Sending fails if the task has stopped by itself. Its result has the reason.
        let _ = self.stop.send(());
        let count = self.task.await.context("the witness panicked")??;
        ensure!(count > 0, "the witness sent no query");
        Ok(())
    }
}
