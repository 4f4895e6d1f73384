//! The commands of `docs/install.md` and of the README, and the Corefile snippets in the
//! documentation.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use multinet_testing::ask::ask_udp;
use multinet_testing::cluster::Cluster;
use multinet_testing::coredns::CoreDns;
use multinet_testing::kubectl::shell;
use multinet_testing::markdown::{blocks, examples};
use multinet_testing::objects::parse_folder;
use multinet_testing::replica::{Options, Replica};
use multinet_testing::tools::repository;
use multinet_testing::wait::eventually;

use crate::{network_status, shared};

/// Time limit for a command to work, because a definition that was just applied is not served at
/// once.
pub(crate) const SERVED: Duration = Duration::from_secs(30);

/// Returns the commands for `kubectl` in a document.
fn commands(document: &str) -> Result<Vec<String>> {
    let text = fs::read_to_string(repository().join(document)).context(document.to_owned())?;
    let commands: Vec<_> = examples(&text)
        .into_iter()
        .map(|example| example.command)
        .filter(|command| command.starts_with("kubectl "))
        .collect();
    ensure!(!commands.is_empty(), "{document} shows no `$ kubectl`");
    Ok(commands)
}

/// Address of the Service in the documentation.
const SHOWN: &str = "10.96.118.20";

#[tokio::test]
async fn the_commands_of_the_documentation_work() -> Result<()> {
    let mut cluster = Cluster::start().await?;
    // These controllers remove namespaces, and aggregate our roles into Kubernetes' own.
    cluster.start_controller_manager("namespace-controller,clusterrole-aggregation-controller").await?;
    let (mut installed, mut has_policy) = (false, false);
    for command in commands("README.md")?.into_iter().chain(commands("docs/install.md")?) {
        let printed = eventually(&command, SERVED, async || shell(&cluster, &command)).await?;
        if command.contains("jsonpath") {
            ensure!(printed.starts_with("10.96."), "{command}: {printed}");
        }
        if command == "kubectl apply -k deploy/kustomize/base" && !installed {
            installed = true;
            check_user_permissions(&cluster).await?;
            check_mirror_permissions(&cluster).await?;
        }
        if command == network_status::APPLY {
            network_status::check_policy(&cluster).await?;
            has_policy = true;
        }
    }
    ensure!(installed && has_policy, "installed: {installed}, with the policy: {has_policy}");

    // No object of multinet is left.
    let policies = "validatingadmissionpolicy,validatingadmissionpolicybinding";
    for kinds in ["crd", "clusterrole", "clusterrolebinding", policies, "namespace"] {
        let left = shell(&cluster, &format!("kubectl get {kinds} -o name"))?;
        ensure!(!left.contains("multinet"), "objects are left:\n{left}");
    }
    Ok(())
}

/// Checks that a user with the role `edit` of a namespace may write services there, but not slices.
async fn check_user_permissions(cluster: &Cluster) -> Result<()> {
    shell(
        cluster,
        "kubectl create namespace team -o yaml --dry-run=client | kubectl apply -f - &&
         kubectl create rolebinding someone -n team --clusterrole edit --user someone -o yaml --dry-run=client |
         kubectl apply -f -",
    )?;
    for (verb, kind, wanted) in [
        ("create", "multinetworkservices", "yes"),
        ("list", "multinetworkendpointslices", "yes"),
        ("create", "multinetworkendpointslices", "no"),
    ] {
        let question = format!("kubectl auth can-i {verb} {kind} -n team --as someone || true");
        eventually(&question, SERVED, async || {
            let said = shell(cluster, &question)?;
            ensure!(said.trim() == wanted, "{said}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Checks that a user with the role `edit` may not set a mirror, because the controller then writes
/// core EndpointSlices, which the user may not write.
async fn check_mirror_permissions(cluster: &Cluster) -> Result<()> {
    let kubectl = |line: &str| shell(cluster, &format!("kubectl -n team {line}"));
    let create = |mirror: &str, flags: &str| {
        let text = format!(
            "{{apiVersion: multinetwork.numaproj.io/v1alpha1, kind: MultiNetworkService, metadata: {{name: infer}}, \
             spec: {{selector: {{}}, networks: [{{name: rdma}}], {mirror}}}}}"
        );
        kubectl(&format!("create {flags} -f - <<'END'\n{text}\nEND"))
    };
    let patch =
        |patch: &str, who: &str| kubectl(&format!("patch mnsvc infer --type merge -p '{patch}' {who}"));
    let (with, someone) = ("mirror: {serviceName: fast}", "--as someone");
    let dry = format!("{someone} --dry-run=server");
    // The API server enforces the policy a moment after it is applied.
    refused("a mirror", async || create(with, &dry)).await?;
    create("", someone)?;
    refused("a mirror later", async || patch(r#"{"spec": {"mirror": {"serviceName": "fast"}}}"#, &dry))
        .await?;

    // Once an admin has set a mirror, the user may not change the published addresses, but may
    // change other fields and remove the mirror.
    patch(r#"{"spec": {"mirror": {"serviceName": "fast"}}}"#, "")?;
    refused("another selector", async || {
        patch(r#"{"spec": {"selector": {"matchLabels": {"a": "b"}}}}"#, &dry)
    })
    .await?;
    patch(r#"{"metadata": {"labels": {"a": "b"}}}"#, someone)?;
    patch(r#"{"spec": {"mirror": null}}"#, &dry)?;

    let text = fs::read_to_string(repository().join("docs/controller.md"))?;
    let granting: Vec<_> = examples(&text)
        .into_iter()
        .map(|example| example.command)
        .filter(|command| command.contains("multinet-mirror"))
        .collect();
    ensure!(granting.len() == 2, "docs/controller.md shows {granting:?}");
    for command in granting {
        shell(cluster, &command)?;
    }
    eventually("a user who may write core slices to change a mirror", SERVED, async || {
        patch(r#"{"spec": {"mirror": {"serviceName": "faster"}}}"#, someone).map(drop)
    })
    .await?;
    kubectl("delete mnsvc/infer role/multinet-mirror rolebinding/multinet-mirror").map(drop)
}

/// Waits until the API server refuses a change because of the mirror.
async fn refused(what: &str, attempt: impl AsyncFn() -> Result<String>) -> Result<()> {
    eventually(&format!("{what} to be refused"), SERVED, async || match attempt().await {
        Ok(said) => bail!("{said}"),
        Err(error) => {
            let said = format!("{error:#}");
            ensure!(said.contains("only users who may create endpointslices.discovery.k8s.io"), "{said}");
            Ok(())
        }
    })
    .await
}

#[tokio::test]
async fn the_corefiles_of_the_documentation_work() -> Result<()> {
    const ZONE: &str = "multinet.cluster.local";
    const REVERSE: &str = "111.168.192.in-addr.arpa";
    let cluster = shared::cluster().await?;
    let objects = cluster.objects().await?;
    for file in ["1-namespace.yaml", "2-service.yaml", "3-endpoints.yaml"] {
        objects.apply_file(&repository().join("deploy/examples/quickstart").join(file)).await?;
    }
    let replica =
        Options::new(&cluster.dns_server_kubeconfig(cluster.address()).await?).start_ready().await?;
    let (document, infer) = ("docs/install.md", format!("infer.vision.svc.{ZONE}"));
    let host = format!("detect-infer-0.{infer}.");
    for (zone, question, wanted) in [
        (ZONE, (infer.as_str(), "A"), ["192.168.111.5", "192.168.111.6"].as_slice()),
        (REVERSE, (&format!("5.{REVERSE}"), "PTR"), &[&host]),
    ] {
        let plugins = server_block(document, zone)?;
        let front = CoreDns::start(&[(zone, &forwarding(&plugins, &replica)?)]).await?;
        let reply = ask_udp(front.address(), question.0, question.1).await?;
        ensure!(
            BTreeSet::from_iter(reply.data()) == wanted.iter().map(ToString::to_string).collect(),
            "{document}: {}",
            reply.text("")
        );
    }
    Ok(())
}

/// Returns the plugins in a document's server block for a zone. The header, with another port, and
/// the plugin `errors` are written by [`CoreDns`].
fn server_block(document: &str, zone: &str) -> Result<String> {
    let text = fs::read_to_string(repository().join(document))?;
    let header = format!("{zone}:53 {{\n    errors\n");
    let mut plugins = blocks(&text)
        .into_iter()
        .filter_map(|block| Some(block.strip_prefix(&header)?.trim_end().strip_suffix('}')?.to_owned()));
    plugins.next().with_context(|| format!("{document} shows no server block for {zone}"))
}

/// Makes the plugins forward to a replica instead of the documented address.
fn forwarding(plugins: &str, replica: &Replica) -> Result<String> {
    ensure!(plugins.contains(&format!("forward . {SHOWN} ")), "another upstream:\n{plugins}");
    Ok(plugins.replace(SHOWN, &replica.dns().to_string()))
}

#[test]
fn the_page_names_every_example_and_kind() -> Result<()> {
    let text = fs::read_to_string(repository().join("docs/install.md"))?;
    for entry in fs::read_dir(repository().join("deploy/examples"))? {
        let folder = entry?.file_name().into_string().unwrap_or_default();
        ensure!(
            text.contains(&format!("deploy/examples/{folder}")),
            "docs/install.md does not mention {folder}"
        );
    }
    for crd in parse_folder("deploy/crds")? {
        let short = crd.data["spec"]["names"]["shortNames"][0].as_str().context("no short name")?;
        ensure!(text.contains(&format!("`{short}`")), "docs/install.md does not mention {short}");
    }
    Ok(())
}
