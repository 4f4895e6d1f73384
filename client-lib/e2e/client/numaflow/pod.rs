//! Pods of vertices: a user-defined function, which is a real process, and a data plane beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use multinet_testing::process::{Process, workspace_example};
use tokio::task::JoinHandle;

use super::plane::{self, Flow};
use super::{Extent, SIZE, Site};

/// Time limit for a function to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// Kind of a vertex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Map function of a claim check.
    Decode,
    /// Sink of a claim check.
    Infer,
    /// Sink of a boundary.
    Send,
    /// Source of a boundary.
    Receive,
}

/// Cause of death, always by SIGKILL or without a word.
#[derive(Clone, Copy, Debug)]
pub(super) enum Death {
    /// The user-defined function dies. The data plane sees that, and gives the messages that the
    /// function has not finished back to Numaflow, which delivers them again.
    Function,
    /// The data plane dies. Its messages are delivered again later, to it or others.
    Plane,
    /// The whole pod dies.
    Pod,
}

/// A pod, which ends when this value is dropped.
pub(super) struct Pod {
    role: Role,
    number: usize,
    site: Arc<Site>,
    flow: Arc<Flow>,
    function: Process,
    plane: JoinHandle<Result<()>>,
}

impl Role {
    /// Returns the name of the vertex.
    pub(super) fn vertex(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Infer => "infer",
            Self::Send => "send",
            Self::Receive => "receive",
        }
    }

    /// Returns whether other pods connect to those of this vertex.
    pub(super) fn is_in_dns(self) -> bool {
        matches!(self, Self::Decode | Self::Receive)
    }

    /// Returns the names of the function's socket, and of the file which says that it listens.
    fn files(self) -> (&'static str, &'static str) {
        match self {
            Self::Decode => ("mapstream.sock", "mapper-server-info"),
            Self::Infer | Self::Send => ("sink.sock", "sinker-server-info"),
            Self::Receive => ("source.sock", "sourcer-server-info"),
        }
    }

    /// Returns the command that starts the function, as multinet-numaflow and the author set it up.
    fn command(self, number: usize, site: &Site, extent: &Extent, folder: &Path) -> Result<Command> {
        let name = |vertex| format!("{vertex}.frames.vision.vertexdomain.local.:{}", site.port);
        let (example, variable, other) = match self {
            Self::Decode => ("claim_check", "MULTINET_TARGETS", "infer"),
            Self::Infer => ("claim_check", "MULTINET_SOURCES", "decode"),
            Self::Send => ("boundary", "MULTINET_TARGETS", "receive"),
            Self::Receive => ("boundary", "MULTINET_SOURCES", "send"),
        };
        let mut command = Command::new(workspace_example(example)?);
        command.arg(self.vertex()).arg("--sockets").arg(folder).env(variable, name(other));
        command.env("MULTINET_POD_NAME", host(self, number)).env("NUMAFLOW_REPLICA", number.to_string());
        match self {
            Self::Decode => {
                command.args(["--host", &host(self, number), "--address", &address(number)]);
                command.args(["--size", &SIZE.to_string(), "--budget", &(SIZE * extent.offers).to_string()]);
                command.args(["--repeat", &extent.repeat.to_string()]);
            }
            Self::Infer => {
                command.args(["--server", &site.dns.to_string(), "--wait", &extent.wait.to_string()]);
            }
            Self::Send => {
                command.args(["--server", &site.dns.to_string()]);
            }
            Self::Receive => {
                command.args(["--address", &address(number), "--slots", "64"]);
            }
        }
        Ok(command)
    }
}

/// Returns the host name of a pod, as Numaflow gives it.
pub(super) fn host(role: Role, number: usize) -> String {
    format!("frames-{}-{number}", role.vertex())
}

/// Returns the address of a pod on its second NIC.
pub(super) fn address(number: usize) -> String {
    format!("127.1.0.{}", number + 1)
}

impl Pod {
    pub(super) async fn start(
        role: Role,
        number: usize,
        site: &Arc<Site>,
        flow: &Arc<Flow>,
        extent: &Extent,
    ) -> Result<Self> {
        let function = function(role, number, site, extent).await?;
        let plane = plane(role, number, site, flow);
        Ok(Self { role, number, site: Arc::clone(site), flow: Arc::clone(flow), function, plane })
    }

    /// Kills a part of the pod, or all of it, and starts that again.
    pub(super) async fn die(&mut self, death: Death, extent: &Extent) -> Result<()> {
        match death {
            Death::Function => {
                self.function.kill()?;
                (&mut self.plane).await??;
            }
            Death::Plane => self.end_plane().await,
            Death::Pod => {
                self.end_plane().await;
                self.function.kill()?;
            }
        }
        if !matches!(death, Death::Plane) {
            self.function = function(self.role, self.number, &self.site, extent).await?;
        }
        self.plane = plane(self.role, self.number, &self.site, &self.flow);
        Ok(())
    }

    /// Fails if the data plane has ended by itself.
    pub(super) async fn check(&mut self) -> Result<()> {
        if self.plane.is_finished() {
            (&mut self.plane).await??;
            self.function.check_running()?;
            bail!("{} has ended the stream", host(self.role, self.number));
        }
        Ok(())
    }

    /// Ends the data plane. Its messages count as abandoned.
    async fn end_plane(&mut self) {
        self.plane.abort();
        // It was cancelled, or it had ended.
        let _ = (&mut self.plane).await;
    }

    /// Kills the pod for good.
    pub(super) async fn end(mut self) -> Result<()> {
        self.end_plane().await;
        self.function.kill()
    }
}

/// Starts a function, and waits until it listens.
async fn function(role: Role, number: usize, site: &Site, extent: &Extent) -> Result<Process> {
    let folder = folder(role, number, site);
    fs::create_dir_all(&folder)?;
    let (_, info) = role.files();
    let info = folder.join(info);
    // A function that was killed leaves it behind.
    let _ = fs::remove_file(&info);
    let mut command = role.command(number, site, extent, &folder)?;
    let mut function = Process::spawn(&mut command, &site.log(role, number))?;
    let listens = async || {
        let text = fs::read_to_string(&info)?;
        ensure!(text.ends_with("__END__"), "{text}");
        Ok(())
    };
    function.until("listen", PATIENCE, listens).await.context(host(role, number))?;
    Ok(function)
}

fn plane(role: Role, number: usize, site: &Site, flow: &Arc<Flow>) -> JoinHandle<Result<()>> {
    let (socket, _) = role.files();
    let (socket, flow) = (folder(role, number, site).join(socket), Arc::clone(flow));
    match role {
        Role::Decode => tokio::spawn(plane::map(socket, flow)),
        Role::Infer => {
            let input = Arc::clone(&flow.output);
            tokio::spawn(plane::sink(socket, flow, input))
        }
        Role::Send => {
            let input = Arc::clone(&flow.input);
            tokio::spawn(plane::sink(socket, flow, input))
        }
        Role::Receive => tokio::spawn(plane::source(socket, flow)),
    }
}

fn folder(role: Role, number: usize, site: &Site) -> PathBuf {
    site.folder.path().join(host(role, number))
}
