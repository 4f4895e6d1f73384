//! The `multinet` binary, and servers with services for it to find.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Result, ensure};
use multinet_testing::server::{Flags, Server, program};

/// Root of the repository.
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Full name of the service.
pub(crate) const SERVICE: &str = "infer.vision.svc.multinet.cluster.local";

/// Service of [`slice`], with a time to live of one second.
pub(crate) const CHANGEABLE: &str = "\
apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkService
metadata: {name: infer, namespace: vision}
spec:
  networks: [{name: rdma-a, alias: rail0}]
  ports: [{name: rdma, port: 18515}]
  ttlSeconds: 1
";

/// Returns the command of the program.
pub(crate) fn multinet() -> Result<Command> {
    program("multinet", "MULTINET_BIN")
}

/// Mounts `/sys` again, so that it shows the interfaces of this test's sandbox, as in a pod.
pub(crate) fn own_sys() -> Result<()> {
    let mounted = Command::new("mount").args(["-t", "sysfs", "sysfs", "/sys"]).status()?;
    ensure!(mounted.success(), "mount: {mounted}");
    Ok(())
}

/// Starts a server with the quickstart's service.
pub(crate) fn quickstart() -> Result<Server> {
    Flags::new().start(&Path::new(ROOT).join("deploy/examples/quickstart"))
}

/// Returns the manifest of a slice, with host, address and node of each endpoint.
pub(crate) fn slice(endpoints: &[(&str, &str, &str)]) -> String {
    let mut text = "\
apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkEndpointSlice
metadata:
  name: infer-0
  namespace: vision
  labels: {multinetwork.numaproj.io/service-name: infer, multinetwork.numaproj.io/managed-by: test}
spec:
  addressType: IPv4
  network: {kind: NetworkAttachmentDefinition, name: rdma-a, namespace: vision, alias: rail0}
  ports: [{name: rdma, port: 18515, protocol: TCP}]
  endpoints:
"
    .to_owned();
    for (host, address, node) in endpoints {
        text.push_str(&format!(
            "  - addresses: [{address}]\n    hostname: {host}\n    nodeName: {node}\n    \
             targetRef: {{kind: Pod, namespace: vision, name: {host}, uid: uid-of-{address}}}\n"
        ));
    }
    text
}

/// Exit status and output of a program.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Runs a program to its end.
    pub(crate) fn of(command: &mut Command) -> Result<Self> {
        let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output()?;
        Ok(Self {
            status: status.code(),
            stdout: String::from_utf8(stdout)?,
            stderr: String::from_utf8(stderr)?,
        })
    }
}
