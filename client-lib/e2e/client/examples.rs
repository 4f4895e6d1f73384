//! The example programs when the reader of their output goes away.

use std::io;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::process::{Process, workspace_example};
use multinet_testing::wait::eventually;
use tempfile::TempDir;

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
