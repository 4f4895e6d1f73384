//! `multinet matrix` between two servers on the soft-RoCE link.

use anyhow::{Result, ensure};
use multinet_testing::guest;
use multinet_testing::process::workspace_binary;

use super::{BOUND, LINK};

const SCRIPT: &str = r#"
    trap 'cat /tmp/said-*' EXIT
    mkdir /tmp/manifests
    echo "$MANIFESTS" >/tmp/manifests/train.yaml
    $MULTINET_DNS --listen dns://127.0.0.1:5353 --manifests /tmp/manifests >/tmp/said-dns 2>&1 &
    started=$!
    service=train.vision.svc.multinet.cluster.local
    options="--server 127.0.0.1:5353"
    # The kernel's way to an address of its own is lo, so the device is named.
    flags="-s 65536 -d rxe0 --transport rdma"
    wait_for $MULTINET resolve $options $service rdma >/tmp/said-resolve 2>&1
    for number in 1 2; do
      $MULTINET bench server $options --matrix $service $flags --address 10.9.0.$number >/tmp/said-$number 2>&1 &
      started="$started $!"
      wait_for grep -q 'listening on' /tmp/said-$number
    done
    $MULTINET matrix $options $service -D 1 --size 65536
    kill $started
    wait $started || true
    trap - EXIT
"#;

const MANIFESTS: &str = "
apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkService
metadata: {name: train, namespace: vision}
spec:
  networks: [{name: rdma-a, alias: rail0}]
  ports: [{name: rdma, port: 18515}]
---
apiVersion: multinetwork.numaproj.io/v1alpha1
kind: MultiNetworkEndpointSlice
metadata:
  name: train-0
  namespace: vision
  labels: {multinetwork.numaproj.io/service-name: train, multinetwork.numaproj.io/managed-by: test}
spec:
  addressType: IPv4
  network: {kind: NetworkAttachmentDefinition, name: rdma-a, namespace: vision, alias: rail0}
  ports: [{name: rdma, port: 18515, protocol: TCP}]
  endpoints:
  - {addresses: [10.9.0.1], hostname: worker-0}
  - {addresses: [10.9.0.2], hostname: worker-1}
";

#[tokio::test]
async fn a_matrix_measures_by_rdma() -> Result<()> {
    let multinet = workspace_binary("multinet", "MULTINET_BIN")?;
    let dns = workspace_binary("multinet-dns", "MULTINET_DNS_BIN")?;
    let programs =
        format!("MULTINET={}\nMULTINET_DNS={}\nMANIFESTS='{MANIFESTS}'\n", multinet.display(), dns.display());
    let said = guest::run(&[LINK, &programs, SCRIPT].concat(), BOUND).await?;
    ensure!(said.status == 0, "exit status {}:\n{}", said.status, said.output);
    let title =
        said.output.lines().find(|line| line.starts_with("rail0: Gb/s of messages of 65536 bytes by "));
    ensure!(title.is_some_and(|title| title.contains(" by RDMA, ")), "{}", said.output);
    ensure!(said.output.contains("\n0 worker-0") && !said.output.contains("not measured"), "{}", said.output);
    Ok(())
}
