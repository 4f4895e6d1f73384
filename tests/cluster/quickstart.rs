//! The quickstart folder, which can be served as files and also be applied to a cluster.

use anyhow::Result;
use multinet_testing::objects::parse_folder;
use multinet_testing::replica::Options;

use crate::shared;

#[tokio::test]
async fn the_quickstart_folder_can_be_applied() -> Result<()> {
    let cluster = shared::cluster().await?;
    let objects = cluster.objects().await?;
    for object in parse_folder("deploy/examples/quickstart")? {
        objects.apply_object(&object).await?;
    }
    let kubeconfig = cluster.dns_server_kubeconfig(cluster.address()).await?;
    let replica = Options::new(&kubeconfig).start_ready().await?;
    let infer = "infer.vision.svc.multinet.cluster.local";
    replica.answers(infer, "A", &["192.168.111.5", "192.168.111.6"]).await
}
