//! The programs in the pods, `frames_source` and `frames_sink`.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::netns::LightPod;
use multinet_testing::process::{Process, workspace_example};
use multinet_testing::replica::BOUND;
use tempfile::TempDir;

use super::stage::{Stage, second_address};
use super::tally::{Frame, Status};

/// Shortest permitted `--silence`: seconds without a message after which a peer counts as gone.
const SILENCE: &str = "4";

/// Pod that receives.
pub(super) struct Sink {
    process: Process,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) address: String,
    pub(super) pod: LightPod,
    _folder: TempDir,
}

/// Pod that sends.
pub(super) struct Source {
    pub(super) process: Process,
    pub(super) pod: LightPod,
    folder: TempDir,
    name: String,
}

/// Frames of a receiver, and traffic of its interfaces in bytes.
pub(super) struct Record {
    pub(super) name: String,
    pub(super) frames: Vec<Frame>,
    pub(super) default_network: u64,
    pub(super) second_network: u64,
}

impl Sink {
    /// Starts a pod of the service, and makes it ready once its program listens.
    pub(super) async fn start(stage: &Stage, name: &str) -> Result<Self> {
        let pod = stage.pod(name, "infer").await?;
        let address = second_address(&pod).await?;
        let uid = uid(&pod).await?;
        let folder = TempDir::new()?;
        let mut command = pod.command(workspace_example("frames_sink")?);
        identify(&mut command, name, &uid).args(["18515", "--silence", SILENCE]);
        let mut process = Process::spawn(&mut command, &folder.path().join("log"))?;
        let listening = process.logged("listening on ", BOUND).await?;
        ensure!(listening == format!("{address}:18515"), "the sink listens on {listening}, not on {address}");
        stage.ready(name).await?;
        Ok(Self { process, name: name.to_owned(), uid, address, pod, _folder: folder })
    }

    /// Sets the interface of the second network `down` or `up`.
    pub(super) fn link(&self, state: &str) -> Result<()> {
        link(&self.pod, state)
    }

    /// Sends SIGKILL.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Sends SIGTERM, and waits for a successful end.
    pub(super) async fn terminate(&mut self) -> Result<()> {
        let status = self.process.terminate(BOUND).await?;
        ensure!(status.success(), "{} ended with {status}\n{}", self.name, self.process.tail());
        Ok(())
    }

    /// Waits until it has received more than `count` frames.
    pub(super) async fn has_more_than(&mut self, count: usize) -> Result<()> {
        let process = &self.process;
        multinet_testing::wait::eventually(
            &format!("{} to receive more than {count} frames", self.name),
            BOUND,
            async || {
                let found = frames(process);
                ensure!(found > count, "it has {found}\n{}", process.tail());
                Ok(())
            },
        )
        .await
    }

    /// Returns the number of received frames.
    pub(super) fn count(&self) -> usize {
        frames(&self.process)
    }

    /// Returns its frames and traffic so far.
    pub(super) fn record(&self) -> Result<Record> {
        let frames = Frame::all(&self.process.log())?;
        let [default_network, second_network] = carried(&self.pod)?;
        Ok(Record { name: self.name.clone(), frames, default_network, second_network })
    }

    /// Removes the pod, as a kubelet would after the end of its program. Returns its record.
    pub(super) async fn remove(self) -> Result<Record> {
        let record = self.record()?;
        self.pod.remove().await?;
        Ok(record)
    }
}

impl Source {
    /// Starts a pod that sends to the service with these options, and waits until it is connected.
    pub(super) async fn start(stage: &Stage, name: &str, options: &str) -> Result<Self> {
        let pod = stage.pod(name, "camera").await?;
        let folder = TempDir::new()?;
        let process = run(stage, (&pod, &folder), name, options).await?;
        Ok(Self { process, pod, folder, name: name.to_owned() })
    }

    /// Starts the program again in the same pod, under another name.
    pub(super) async fn restart(self, stage: &Stage, name: &str, options: &str) -> Result<Self> {
        let Self { pod, folder, .. } = self;
        let process = run(stage, (&pod, &folder), name, options).await?;
        Ok(Self { process, pod, folder, name: name.to_owned() })
    }

    /// Waits for a status that fulfils a condition. Returns it.
    pub(super) async fn shows(&mut self, what: &str, fulfils: impl Fn(&Status) -> bool) -> Result<Status> {
        let log = self.folder.path().join(&self.name);
        self.process
            .until(what, BOUND, async || {
                let status = Status::last(&std::fs::read_to_string(&log)?)?;
                ensure!(fulfils(&status), "its status is {status:?}");
                Ok(status)
            })
            .await
    }

    /// Waits until it stops sending, because it has no credit.
    pub(super) async fn stalls(&mut self) -> Result<()> {
        let log = self.folder.path().join(&self.name);
        self.process
            .until("stall", BOUND, async || {
                let all = Status::all(&std::fs::read_to_string(&log)?)?;
                let last = all.last_chunk::<2>().context("it has not printed two statuses yet")?;
                ensure!(last[0].sent == last[1].sent, "its statuses are {last:?}");
                Ok(())
            })
            .await
    }

    /// Waits until `count` receivers are connected.
    pub(super) async fn connected(&mut self, count: u64) -> Result<Status> {
        self.shows(&format!("have {count} peers"), |status| status.connected == count).await
    }

    /// Sets the interface of the second network `down` or `up`.
    pub(super) fn link(&self, state: &str) -> Result<()> {
        link(&self.pod, state)
    }

    /// Sends SIGTERM, and waits until it has delivered its frames and ended. Returns its last
    /// status.
    pub(super) async fn finish(&mut self) -> Result<Status> {
        let status = self.process.terminate(BOUND).await?;
        ensure!(status.success(), "{} ended with {status}\n{}", self.name, self.process.tail());
        let log = self.process.log();
        ensure!(log.lines().any(|line| line.starts_with("done ")), "{} has no last status\n{log}", self.name);
        Status::last(&log)
    }
}

/// Starts `resolve_watch` in a sender's pod.
pub(super) fn watch(stage: &Stage, source: &Source) -> Result<Process> {
    let mut command = source.pod.command(workspace_example("resolve_watch")?);
    Process::spawn(command.arg(stage.service()), &source.folder.path().join("resolve_watch"))
}

async fn run(
    stage: &Stage,
    (pod, folder): (&LightPod, &TempDir),
    name: &str,
    options: &str,
) -> Result<Process> {
    let mut command = pod.command(workspace_example("frames_source")?);
    identify(&mut command, name, &uid(pod).await?).arg(stage.service());
    command.args(["--silence", SILENCE]).args(options.split_whitespace());
    let mut process = Process::spawn(&mut command, &folder.path().join(name))?;
    process.logged("status ", BOUND).await?;
    Ok(process)
}

/// Adds the variables that the downward API would set.
fn identify<'c>(command: &'c mut Command, name: &str, uid: &str) -> &'c mut Command {
    let known = [("MULTINET_POD_NAME", name), ("MULTINET_POD_UID", uid), ("MULTINET_NODE_NAME", "gpu-1")];
    command.envs(known)
}

async fn uid(pod: &LightPod) -> Result<String> {
    pod.object().await?.metadata.uid.context("a pod without uid")
}

fn frames(process: &Process) -> usize {
    process.log().lines().filter(|line| line.starts_with("frame ")).count()
}

fn link(pod: &LightPod, state: &str) -> Result<()> {
    let status = pod.command("ip").args(["link", "set", "net1", state]).status()?;
    ensure!(status.success(), "ip link set net1 {state}: {status}");
    Ok(())
}

/// Returns the bytes that a pod's interfaces `eth0` and `net1` have carried in both directions.
pub(super) fn carried(pod: &LightPod) -> Result<[u64; 2]> {
    let sum = |interface: &str| {
        let files =
            ["rx_bytes", "tx_bytes"].map(|file| format!("/sys/class/net/{interface}/statistics/{file}"));
        let output = pod.command("cat").args(&files).output()?;
        let text = String::from_utf8(output.stdout)?;
        let numbers: Vec<u64> = text.lines().map(str::parse).collect::<Result<_, _>>()?;
        ensure!(numbers.len() == 2, "{}", String::from_utf8_lossy(&output.stderr));
        Ok(numbers.iter().sum())
    };
    Ok([sum("eth0")?, sum("net1")?])
}
