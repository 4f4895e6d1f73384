//! Somebody who asks all the time, while a test breaks things.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::ask::ask_udp;

/// The pause between two questions.
const PAUSE: Duration = Duration::from_millis(10);

/// Asks one question again and again until it gets a wrong answer or none, or is told to stop.
#[derive(Debug)]
pub struct Witness {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<usize>>,
}

impl Witness {
    /// Begins to ask `server`. The data of every answer have to be these, in any order.
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
                    "after {count} right answers came a wrong one; expected {data:?}:\n{}",
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

    /// Stops asking. Fails if any answer was wrong, or there were none.
    pub async fn was_content(self) -> Result<()> {
        // Gone if it has stopped by itself, which the task's result explains.
        let _ = self.stop.send(());
        let count = self.task.await.context("the witness panicked")??;
        ensure!(count > 0, "the witness never asked");
        Ok(())
    }
}
