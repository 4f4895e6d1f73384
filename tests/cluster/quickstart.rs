//! The folder that the server is tried out with is also what `kubectl apply` takes.

use std::fs;

use anyhow::Result;
use multinet_testing::replica::Options;
use multinet_testing::tools::repository;

use crate::shared;

#[tokio::test]
async fn the_quickstart_folder_can_be_applied() -> Result<()> {
    let cluster = shared::cluster().await?;
    let objects = cluster.objects().await?;
    let mut files: Vec<_> = fs::read_dir(repository().join("deploy/examples/quickstart"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.sort(); // as kubectl reads them
    for file in files {
        objects.apply_file(&file).await?;
    }
    let kubeconfig = cluster.dns_server_kubeconfig(cluster.address()).await?;
    let replica = Options::new(&kubeconfig).start_ready().await?;
    let infer = "infer.vision.svc.multinet.cluster.local";
    replica.answers(infer, "A", &["192.168.111.5", "192.168.111.6"]).await
}
