//! The `multinet` binary, and services for it to find.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Result, ensure};
use multinet_testing::server::{Flags, Server, program};

/// The repository's root.
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Full name of the service that is served.
pub(crate) const SERVICE: &str = "infer.vision.svc.multinet.cluster.local";

/// The service of [`slice`], whose answers are asked for again after a second.
pub(crate) const CHANGEABLE: &str = "\
apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkService
metadata: {name: infer, namespace: vision}
spec:
  networks: [{name: rdma-a, alias: rail0}]
  ports: [{name: rdma, port: 18515}]
  ttlSeconds: 1
";

/// The program, not yet started.
pub(crate) fn multinet() -> Result<Command> {
    program("multinet", "MULTINET_BIN")
}

/// Has `/sys` show the interfaces of the sandbox that this test is in, as a pod's does, and not the machine's.
pub(crate) fn own_sys() -> Result<()> {
    let mounted = Command::new("mount").args(["-t", "sysfs", "sysfs", "/sys"]).status()?;
    ensure!(mounted.success(), "mount: {mounted}");
    Ok(())
}

/// A server of the quickstart's service.
pub(crate) fn quickstart() -> Result<Server> {
    Flags::new().start(&Path::new(ROOT).join("deploy/examples/quickstart"))
}

/// A slice of endpoints: host, address and node of each.
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
             targetRef: {{kind: Pod, namespace: vision, name: {host}, uid: uid-of-{host}}}\n"
        ));
    }
    text
}

/// How a run has ended, and what it has printed.
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
