//! The example programs: when the reader of their output goes away, and those that have a queue
//! between them.

use std::io;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::process::{Process, workspace_example};
use multinet_testing::wait::eventually;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);

/// This is the effect of `| head -1`.
#[tokio::test]
async fn examples_end_quietly_when_their_reader_goes_away() -> Result<()> {
    ends_quietly("frames_sink", &["0", "--address", "127.0.0.1"]).await?;
    let folder = TempDir::new()?;
    let mut command = Command::new(workspace_example("frames_sink")?);
    let mut sink =
        Process::spawn(command.args(["0", "--address", "127.0.0.1"]), &folder.path().join("sink"))?;
    let address = sink.logged("listening on ", PATIENCE).await?;
    let port = address.rsplit(':').next().context("an address has a port")?;
    // For an address, no DNS server is queried.
    ends_quietly("frames_source", &["127.0.0.1", "--port", port, "--rate", "10", "--server", "127.0.0.1:9"])
        .await
}

/// The queue between them is a pipe.
#[tokio::test]
async fn payloads_are_fetched_by_the_references_that_a_queue_carries() -> Result<()> {
    let mut offer = tokio::process::Command::new(workspace_example("offer")?);
    offer.args(["0", "--address", "127.0.0.1", "--size", "100000"]).kill_on_drop(true);
    offer.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut offer = offer.spawn()?;
    let mut said = BufReader::new(offer.stderr.take().context("a pipe")?).lines();
    let mut line = async || timeout(PATIENCE, said.next_line()).await?.map(Option::unwrap_or_default);
    let port = loop {
        let line = line().await?;
        ensure!(!line.is_empty(), "it has ended");
        if let Some((_, port)) = line.rsplit_once("listening on 127.0.0.1:") {
            break port.to_owned();
        }
    };
    let mut fetch = tokio::process::Command::new(workspace_example("fetch")?);
    // For an address, no DNS server is queried.
    fetch.args(["127.0.0.1", "--port", &port, "--wait", "20", "--server", "127.0.0.1:9"]);
    let references: Stdio = offer.stdout.take().context("a pipe")?.try_into()?;
    let fetch = fetch.stdin(references).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;

    let ids: Vec<String> = (0..50).map(|number| format!("camera-17/{number}")).collect();
    let mut messages = offer.stdin.take().context("a pipe")?;
    messages.write_all(ids.iter().flat_map(|id| [id.as_str(), "\n"]).collect::<String>().as_bytes()).await?;
    drop(messages);
    let fetched = timeout(PATIENCE, fetch.wait_with_output()).await??;
    let printed = String::from_utf8(fetched.stdout)?;
    ensure!(fetched.status.success(), "{}: {printed}", fetched.status);
    for id in &ids {
        let is_it = |line: &&str| line.starts_with("fetched ") && line.ends_with(&format!("/{id} 100000"));
        ensure!(printed.lines().filter(is_it).count() == 1, "{id} is not once in\n{printed}");
    }
    let mut taken = 0;
    while taken < ids.len() {
        let line = line().await?;
        ensure!(!line.is_empty(), "{taken} payloads were taken before the end");
        taken += usize::from(line.starts_with("taken camera-17/"));
    }
    let status = timeout(PATIENCE, offer.wait()).await??;
    ensure!(status.success(), "{status}");
    Ok(())
}

async fn ends_quietly(example: &str, arguments: &[&str]) -> Result<()> {
    let (reader, writer) = io::pipe()?;
    drop(reader);
    let mut command = Command::new(workspace_example(example)?);
    let mut running = Running(command.args(arguments).stdout(writer).spawn()?);
    let what = format!("{example} to end");
    let status =
        eventually(&what, PATIENCE, async || running.0.try_wait()?.context("it is still running")).await?;
    ensure!(status.success(), "{example}: {status}");
    Ok(())
}

/// Child process that is killed when this value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
