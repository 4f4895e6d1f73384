//! Steps of the test on a node: changes of pods, and the DNS answers that must follow.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use multinet_testing::ask::ask_udp;
use multinet_testing::multus::second_addresses;
use multinet_testing::node::BOUND;
use multinet_testing::status::{Events, FINE, Status};
use multinet_testing::wait::eventually;
use multinet_testing::witness::Witness;

use crate::stage::{NETWORK, OURS, SYSTEM, Stage, name_of};

/// Common beginning of the addresses on the secondary network.
const SECOND_NETWORK: &str = "192.168.111.";

/// The pods wait for a network that does not exist yet, and the service's status says so. Once the
/// network is created, all recover without further action.
pub(crate) async fn network_comes_late(stage: &Stage) -> Result<()> {
    let status = Status::of(&stage.namespace, "infer")?;
    status.explains("ResolvedRefs=False NetworkNotFound", &[NETWORK]).await?;
    let pods = eventually("three waiting pods", BOUND, async || {
        let pods = stage.pods().await?;
        ensure!(pods.len() == 3, "{} pods", pods.len());
        Ok(pods)
    })
    .await?;
    let events = Events::of(&stage.namespace);
    for pod in &pods {
        events.warn("Pod", name_of(pod)?, "FailedCreatePodSandBox", &[NETWORK]).await?;
    }
    let found = stage.answer(&stage.name()).await?;
    ensure!(found.is_empty(), "no pod has a network, but DNS answers {found:?}");

    let range = format!("{SECOND_NETWORK}0/24");
    let network = stage.node.networks().macvlan(stage.namespace.name(), NETWORK, &[&range])?;
    stage.namespace.apply(network).await?;
    status.is(&FINE).await?;
    stage.three_ready().await?;
    status.counts(3, 3).await?;
    Ok(())
}

/// As shipped, the server listens on a wildcard, so that it has to find another address to publish
/// as its own.
pub(crate) async fn the_name_server_has_an_address(stage: &Stage) -> Result<()> {
    let pods = ours(stage, "multinet-dns").await?;
    let own: BTreeSet<String> = pods.iter().filter_map(|pod| pod.status.as_ref()?.pod_ip.clone()).collect();
    let found = ask_udp(stage.dns(), "ns.dns.multinet.cluster.local", "A").await?.data();
    ensure!(found.len() == 1 && found.iter().all(|address| own.contains(address)), "{found:?} of {own:?}");
    Ok(())
}

/// Each pod answers pods on the same network at the address in DNS, and answers no other pods.
pub(crate) async fn second_nics_are_found(stage: &Stage) -> Result<()> {
    let pods = stage.three_ready().await?;
    let addresses = stage.dns_follows().await?;
    ensure!(addresses.len() == 3, "{addresses:?}");
    ensure!(addresses.iter().all(|address| address.starts_with(SECOND_NETWORK)), "{addresses:?}");

    let records = stage.ask(&format!("_rdma._tcp.{}", stage.name()), "SRV").await?;
    let mut targets = BTreeSet::new();
    for record in records.data() {
        ensure!(record.contains(" 18515 "), "{record}");
        let target = record.rsplit(' ').next().unwrap_or_default().trim_end_matches('.');
        targets.extend(stage.answer(target).await?);
    }
    ensure!(targets == addresses, "SRV leads to {targets:?}, A to {addresses:?}");

    let namespace = stage.namespace.name();
    for visitor in ["neighbour", "stranger"] {
        stage.node.pod_ready(&stage.namespace, visitor).await?;
    }
    // wget of Debian's static busybox crashes when it resolves a name.
    let visit = async |visitor: &str, place: &str| {
        let request = format!("printf 'GET /name HTTP/1.0\\r\\n\\r\\n' | nc -w 3 {place} 18515");
        let reply = stage.node.exec(namespace, visitor, &["sh", "-c", &request]).await?;
        let (_, page) = reply.split_once("\r\n\r\n").with_context(|| format!("no page: {reply:?}"))?;
        anyhow::Ok(page.trim().to_owned())
    };
    let mut visited = BTreeSet::new();
    for address in &addresses {
        visited.insert(visit("neighbour", address).await?);
        let stranger = visit("stranger", address).await.unwrap_or_else(|error| format!("{error:#}"));
        // The connection times out, or no route exists.
        ensure!(stranger.contains(": nc: "), "a pod on no second network reaches {address}: {stranger}");
    }
    let names = pods.iter().map(|pod| name_of(pod).map(ToOwned::to_owned)).collect::<Result<_>>()?;
    ensure!(visited == names, "{visited:?} answer at {addresses:?}, not {names:?}");
    // Every pod has a search path for the short name.
    let by_name = visit("neighbour", &format!("infer.{namespace}.svc.multinet")).await?;
    ensure!(names.contains(&by_name), "{by_name:?} answers at the name");
    Ok(())
}

/// A pod whose probe fails leaves DNS, and comes back once the probe succeeds.
pub(crate) async fn failing_probe(stage: &Stage) -> Result<()> {
    let status = Status::of(&stage.namespace, "infer")?;
    let pods = stage.three_ready().await?;
    let sick = name_of(pods.first().context("no pod")?)?;
    let namespace = stage.namespace.name();
    stage.node.exec(namespace, sick, &["rm", "/www/ready"]).await?;
    status.counts(2, 3).await?;
    let addresses = stage.dns_follows().await?;
    ensure!(addresses.len() == 2, "{addresses:?}");

    stage.node.exec(namespace, sick, &["touch", "/www/ready"]).await?;
    status.counts(3, 3).await?;
    let addresses = stage.dns_follows().await?;
    ensure!(addresses.len() == 3, "{addresses:?}");
    Ok(())
}

/// The Deployment replaces a deleted pod, and DNS follows.
pub(crate) async fn deleted_pod_is_replaced(stage: &Stage) -> Result<()> {
    replace_one(stage).await?;
    stage.three_ready().await?;
    let addresses = stage.dns_follows().await?;
    ensure!(addresses.len() == 3, "{addresses:?}");
    Ok(())
}

/// A new pod has the name of an earlier one, while an unselected pod has that one's address.
pub(crate) async fn same_name_other_address(stage: &Stage) -> Result<()> {
    let host = format!("solo.{}", stage.name());
    let is = async |address: &str| {
        eventually(&format!("{host} to be {address}"), BOUND, async || {
            let found = stage.answer(&host).await?;
            ensure!(found.iter().eq([address]), "it is {found:?}");
            Ok(())
        })
        .await
    };
    let first = start(stage, "solo", true).await?;
    is(&first).await?;
    stage.dns_follows().await?;

    end(stage, "solo").await?;
    let usurper = start(stage, "usurper", false).await?;
    ensure!(usurper == first, "whereabouts gave {usurper} rather than {first}, which was free");
    let second = start(stage, "solo", true).await?;
    ensure!(second != first, "whereabouts gave {first} to two pods");
    is(&second).await?;
    let addresses = stage.dns_follows().await?;
    ensure!(addresses.len() == 4 && !addresses.contains(&first), "{first} in {addresses:?}");

    end(stage, "solo").await?;
    end(stage, "usurper").await?;
    stage.dns_follows().await.map(drop)
}

/// Our programs are killed one after the other, without an effect on answers. Then all controllers
/// are killed at once, and no change is missed.
pub(crate) async fn own_pods_killed(stage: &Stage) -> Result<()> {
    let addresses = stage.dns_follows().await?;
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let witness = Witness::of(stage.dns(), &stage.name(), "A", &addresses);
    let [dns, controllers] = OURS.map(|program| async move { ours(stage, program).await });
    for (dns, controller) in dns.await?.iter().zip(&controllers.await?) {
        for (pod, program) in [(dns, OURS[0]), (controller, OURS[1])] {
            stage.node.kill_program(pod, program)?;
        }
        restarted(stage, dns).await?;
        restarted(stage, controller).await?;
    }
    witness.stop().await?;

    let controller = OURS[1];
    for pod in ours(stage, controller).await? {
        stage.node.kill_program(&pod, controller)?;
    }
    replace_one(stage).await?;
    stage.three_ready().await?;
    stage.dns_follows().await.map(drop)
}

/// All of our pods are deleted without a grace period, while the user's pods change. DNS recovers
/// with the right answers.
pub(crate) async fn own_pods_deleted(stage: &Stage) -> Result<()> {
    let mut deleted = Vec::new();
    for program in OURS {
        for pod in ours(stage, program).await? {
            let name = name_of(&pod)?.to_owned();
            stage.node.delete_pod(SYSTEM, &name, Some(0)).await?;
            deleted.push(name);
        }
    }
    replace_one(stage).await?;
    for deployment in OURS {
        stage.node.rolled_out(SYSTEM, deployment).await?;
        for pod in ours(stage, deployment).await? {
            ensure!(!deleted.contains(&name_of(&pod)?.to_owned()), "{deleted:?} still exist");
        }
    }
    stage.three_ready().await?;
    let addresses = stage.dns_follows().await?;
    ensure!(addresses.len() == 3, "{addresses:?}");
    Status::of(&stage.namespace, "infer")?.is(&FINE).await?;
    Ok(())
}

/// Returns the pods of one of our Deployments.
async fn ours(stage: &Stage, deployment: &str) -> Result<Vec<Pod>> {
    let pods = stage.node.selected(SYSTEM, &format!("app.kubernetes.io/name={deployment}")).await?;
    ensure!(pods.len() == 2, "{} pods of {deployment}", pods.len());
    Ok(pods)
}

/// Waits until the container of a pod has restarted and is ready.
async fn restarted(stage: &Stage, before: &Pod) -> Result<()> {
    let restarts = |pod: &Pod| {
        let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
        containers.first().map(|container| (container.restart_count, container.ready))
    };
    let name = name_of(before)?;
    let (count, _) = restarts(before).context("a pod without a container")?;
    let pods = stage.node.pods(SYSTEM).await?;
    eventually(&format!("{name} to run again"), BOUND, async || {
        let now = restarts(&pods.get(name).await?);
        ensure!(now.is_some_and(|(now, ready)| now > count && ready), "restarts and readiness: {now:?}");
        Ok(())
    })
    .await
}

/// Deletes one of the Deployment's pods, and waits for its replacement.
async fn replace_one(stage: &Stage) -> Result<()> {
    let pods = stage.pods().await?;
    let victim = name_of(pods.first().context("no pod")?)?;
    end(stage, victim).await?;
    eventually("a replacement of the pod", BOUND, async || {
        let pods = stage.pods().await?;
        ensure!(pods.len() == 3, "{} pods", pods.len());
        Ok(())
    })
    .await
}

/// Starts a pod with this name on the second network, which the service selects or not. Returns its
/// second address.
async fn start(stage: &Stage, name: &str, is_selected: bool) -> Result<String> {
    let app = if is_selected { "infer" } else { "other" };
    let namespace = stage.namespace.name();
    let pod = format!(
        r#"{{"apiVersion": "v1", "kind": "Pod",
            "metadata": {{"name": "{name}", "namespace": "{namespace}", "labels": {{"app": "{app}"}},
                         "annotations": {{"k8s.v1.cni.cncf.io/networks": "{NETWORK}"}}}},
            "spec": {{"hostname": "{name}", "subdomain": "infer", "terminationGracePeriodSeconds": 1,
                     "containers": [{{"name": "main", "image": "local/busybox:1", "imagePullPolicy": "Never",
                                     "args": ["-c", "exec sleep 100000"]}}]}}}}"#
    );
    stage.node.objects().await?.apply(&pod).await?;
    let pod = stage.node.pod_ready(&stage.namespace, name).await?;
    let addresses = second_addresses(&pod)?;
    let (_, address) = addresses.first().context("no second address")?;
    Ok(address.clone())
}

/// Deletes a pod, and waits until it is gone and its addresses are free.
async fn end(stage: &Stage, name: &str) -> Result<()> {
    let namespace = stage.namespace.name();
    stage.node.delete_pod(namespace, name, None).await?;
    let pods = stage.node.pods(namespace).await?;
    eventually(&format!("the pod {name} to be gone"), BOUND, async || {
        ensure!(pods.get_opt(name).await?.is_none(), "it is still there");
        Ok(())
    })
    .await
}
