//! `multinet bench --verbs` finds its server as all the others do.

use anyhow::{Result, ensure};
use multinet_testing::multus::ip;
use multinet_testing::sandboxed;
use multinet_testing::server::{Flags, Manifests};

use crate::multinet::{CHANGEABLE, Outcome, SERVICE, multinet, slice};

#[tokio::test]
async fn verbs_are_measured_with_whom_dns_names() -> Result<()> {
    sandboxed!();
    ip(&["address", "add", "10.9.0.2/32", "dev", "lo"])?;
    let manifests = Manifests::new()?;
    manifests.write("service.yaml", CHANGEABLE)?;
    manifests.write("slice.yaml", &slice(&[("a", "10.9.0.2", "gpu-1")]))?;
    let server = Flags::new().start(manifests.path())?;
    // Nobody listens there: that it is where somebody was looked for is said.
    let looked_for = "10.9.0.2:18515 (is it multinet bench server --verbs?)";
    let cases: [(&[&str], &str); 3] = [
        (&["rdma"], looked_for),
        (&["rdma", "--network", "rail0"], looked_for),
        (
            &["rdma", "--network", "rail1"],
            "infer.vision.svc.multinet.cluster.local has no address on the network rail1",
        ),
    ];
    for (arguments, expected) in cases {
        let mut bench = multinet()?;
        bench.args(["bench", "client", "--verbs", "--server", &server.dns().to_string(), SERVICE]);
        let outcome = Outcome::of(bench.args(arguments))?;
        ensure!(outcome.status == Some(1) && outcome.stderr.contains(expected), "{arguments:?}: {outcome:?}");
    }
    Ok(())
}
