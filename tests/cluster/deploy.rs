//! Result of `kubectl apply -k deploy/kustomize/base`: the API server accepts the objects without
//! changes, and their containers are hardened as a platform team would require.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use kube::api::{DynamicObject, PostParams};
use kube::core::TypeMeta;
use multinet_testing::cluster::Cluster;
use multinet_testing::kubectl::shell;
use multinet_testing::markdown::blocks;
use multinet_testing::objects::{Objects, kind, name, parse};
use multinet_testing::tools::{files_in, repository};
use serde_json::{Value, json};

use crate::{helm, shared};

/// Version of the crates, which is also the tag of the images.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Longest time that multinet-dns takes to end, in seconds: its lameduck, and its limit for open
/// connections.
const DNS_END: u64 = 5 + 10;

/// Returns the objects that kustomize builds from a folder of `deploy/kustomize`.
fn built(cluster: &Cluster, folder: &str) -> Result<Vec<DynamicObject>> {
    parse(&shell(cluster, &format!("kubectl kustomize deploy/kustomize/{folder}"))?)
}

/// Returns the objects of one kind.
fn of_kind<'a>(objects: &'a [DynamicObject], wanted: &str) -> Vec<&'a DynamicObject> {
    objects.iter().filter(|object| kind(object) == wanted).collect()
}

/// Returns the pod template of a Deployment.
fn template(deployment: &DynamicObject) -> &Value {
    &deployment.data["spec"]["template"]
}

/// Returns the containers of a Deployment, including init containers.
fn containers(deployment: &DynamicObject) -> impl Iterator<Item = &Value> {
    let spec = &template(deployment)["spec"];
    ["containers", "initContainers"].into_iter().filter_map(|list| spec[list].as_array()).flatten()
}

#[tokio::test]
async fn the_api_server_stores_the_base_unchanged() -> Result<()> {
    let cluster = Cluster::start().await?;
    let first = shell(&cluster, "kubectl apply -k deploy/kustomize/base")?;
    let objects = built(&cluster, "base")?;
    ensure!(first.lines().count() == objects.len(), "{} objects, but\n{first}", objects.len());
    ensure!(first.lines().all(|line| line.ends_with(" created")), "{first}");

    // The stored objects equal the shipped ones, so that a second apply changes nothing.
    shell(&cluster, "kubectl diff -k deploy/kustomize/base")?;
    let again = shell(&cluster, "kubectl apply -k deploy/kustomize/base")?;
    // A patch of a PodDisruptionBudget always replaces its selector, here by the same one.
    let changed = |line: &&str| !line.ends_with(" unchanged") && !line.starts_with("poddisruptionbudget.");
    ensure!(!again.lines().any(|line| changed(&line)), "{again}");
    shell(&cluster, "kubectl apply --server-side -k deploy/kustomize/base")?;

    // The namespace admits the shipped pods, but not less hardened ones.
    let objects = cluster.objects().await?;
    for deployment in of_kind(&built(&cluster, "base")?, "Deployment") {
        let admitted = dry_run_pod(&objects, template(deployment)).await;
        admitted.with_context(|| format!("a pod of {} is rejected", name(deployment)))?;
        for (what, weaken) in WEAKER {
            let mut weaker = template(deployment).clone();
            weaken(&mut weaker["spec"]);
            let said = match dry_run_pod(&objects, &weaker).await {
                Ok(()) => bail!("a pod of {} is admitted {what}", name(deployment)),
                Err(error) => format!("{error:#}"),
            };
            ensure!(said.contains("violates PodSecurity"), "{what}: {said}");
        }
    }
    Ok(())
}

/// Removes a part of a pod's hardening from its spec.
type Weaken = fn(&mut Value);

/// Pods that the namespace must reject.
const WEAKER: [(&str, Weaken); 3] = [
    ("as root", |spec| spec["securityContext"]["runAsNonRoot"] = json!(false)),
    ("with the host's processes", |spec| spec["hostPID"] = json!(true)),
    ("with all capabilities", |spec| {
        spec["containers"][0]["securityContext"]["capabilities"]["drop"] = json!([]);
    }),
];

/// Creates a pod of this template as a dry run. Fails if the API server rejects it.
async fn dry_run_pod(objects: &Objects, template: &Value) -> Result<()> {
    let types = TypeMeta { api_version: "v1".to_owned(), kind: "Pod".to_owned() };
    let mut pod = template.clone();
    pod["apiVersion"] = json!(types.api_version);
    pod["kind"] = json!(types.kind);
    pod["metadata"]["name"] = json!("candidate");
    let api = objects.api(&types, Some("multinet-system")).await?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    api.create(&dry, &serde_json::from_value(pod)?).await?;
    Ok(())
}

#[tokio::test]
async fn every_container_is_hardened() -> Result<()> {
    let cluster = shared::cluster().await?;
    let objects = built(cluster, "base")?;
    let deployments = of_kind(&objects, "Deployment");
    let names: BTreeSet<_> = deployments.iter().map(|deployment| name(deployment)).collect();
    ensure!(names == BTreeSet::from(["multinet-controller", "multinet-dns"]), "{names:?}");
    for deployment in deployments {
        let name = name(deployment);
        let spec = &template(deployment)["spec"];
        ensure!(deployment.data["spec"]["replicas"] == 2, "{name} has no second replica");
        for (pointer, wanted) in [
            ("/securityContext/runAsNonRoot", json!(true)),
            ("/securityContext/runAsUser", json!(65532)),
            ("/securityContext/seccompProfile/type", json!("RuntimeDefault")),
            ("/serviceAccountName", json!(name)),
            ("/enableServiceLinks", json!(false)),
        ] {
            ensure!(spec.pointer(pointer) == Some(&wanted), "{name}: {pointer} is not {wanted}: {spec}");
        }
        let nearby =
            "/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/podAffinityTerm";
        let nearby = spec.pointer(nearby).with_context(|| format!("{name} has no anti-affinity"))?;
        ensure!(nearby["topologyKey"] == "kubernetes.io/hostname", "{name}: {nearby}");
        let end = spec["terminationGracePeriodSeconds"].as_u64().context("no grace period")?;
        ensure!(end > DNS_END, "{name} is killed after {end} s, when it may still be shutting down");

        let all: Vec<_> = containers(deployment).collect();
        ensure!(!all.is_empty(), "{name} has no container");
        for container in all {
            check_hardening(container).with_context(|| format!("{name}: {container}"))?;
            let image = container["image"].as_str().unwrap_or_default();
            ensure!(image == format!("{name}:{VERSION}"), "{name} has the image {image}");
            let added = &container["securityContext"]["capabilities"]["add"];
            let wanted = if name == "multinet-dns" { json!(["NET_BIND_SERVICE"]) } else { Value::Null };
            ensure!(*added == wanted, "{name} has the capabilities {added}");
        }
    }
    Ok(())
}

/// Fails if a container has more privileges than it needs, or lacks probes.
pub(crate) fn check_hardening(container: &Value) -> Result<()> {
    for (pointer, wanted) in [
        ("/securityContext/allowPrivilegeEscalation", json!(false)),
        ("/securityContext/readOnlyRootFilesystem", json!(true)),
        ("/securityContext/capabilities/drop", json!(["ALL"])),
        ("/livenessProbe/httpGet/path", json!("/livez")),
        ("/livenessProbe/httpGet/port", json!("metrics")),
        ("/readinessProbe/httpGet/path", json!("/readyz")),
        ("/readinessProbe/httpGet/port", json!("metrics")),
        ("/imagePullPolicy", json!("IfNotPresent")),
    ] {
        ensure!(container.pointer(pointer) == Some(&wanted), "{pointer} is not {wanted}");
    }
    for pointer in ["/resources/requests/cpu", "/resources/requests/memory", "/resources/limits/memory"] {
        ensure!(container.pointer(pointer).is_some(), "no {pointer}");
    }
    let ports = container["ports"].as_array().context("no ports")?;
    ensure!(ports.iter().all(|port| port["name"].is_string()), "a port without a name");
    let metrics = ports.iter().find(|port| port["name"] == "metrics").context("no port metrics")?;
    let admin = format!("--admin=[::]:{}", metrics["containerPort"]);
    let flags = container["args"].as_array().context("no flags")?;
    ensure!(flags.iter().any(|flag| *flag == admin), "no flag {admin}");
    Ok(())
}

#[tokio::test]
async fn selectors_of_the_base_match_its_deployments() -> Result<()> {
    let cluster = shared::cluster().await?;
    let objects = built(cluster, "base")?;
    let deployments = of_kind(&objects, "Deployment");
    for (of, selector) in [
        ("Deployment", "/spec/selector/matchLabels"),
        ("PodDisruptionBudget", "/spec/selector/matchLabels"),
        ("NetworkPolicy", "/spec/podSelector/matchLabels"),
        ("Service", "/spec/selector"),
    ] {
        for object in of_kind(&objects, of) {
            let labels = object.data.pointer(selector).and_then(Value::as_object).context("no selector")?;
            let selected: Vec<_> = deployments
                .iter()
                .filter(|deployment| {
                    let own = &template(deployment)["metadata"]["labels"];
                    labels.iter().all(|(label, value)| own[label] == *value)
                })
                .collect();
            let [deployment] = selected[..] else {
                bail!("{of} {} selects {} Deployments", name(object), selected.len());
            };
            ensure!(name(deployment) == name(object), "{of} {} selects {}", name(object), name(deployment));
            let ports: BTreeSet<_> = containers(deployment)
                .filter_map(|container| container["ports"].as_array())
                .flatten()
                .filter_map(|port| port["name"].as_str())
                .collect();
            for port in named_ports(&object.data["spec"]) {
                ensure!(ports.contains(port), "{of} {} names a port {port}", name(object));
            }
        }
    }
    // Every Deployment has a PodDisruptionBudget and a NetworkPolicy.
    for of in ["PodDisruptionBudget", "NetworkPolicy"] {
        let watched: BTreeSet<_> = of_kind(&objects, of).into_iter().map(name).collect();
        ensure!(watched.len() == deployments.len(), "{of}s: {watched:?}");
    }
    Ok(())
}

/// Returns the names by which a Service or a NetworkPolicy refers to ports of pods.
fn named_ports(spec: &Value) -> BTreeSet<&str> {
    let rules = spec["ingress"].as_array().into_iter().flatten();
    let of_rules = rules.filter_map(|rule| rule["ports"].as_array()).flatten().map(|port| &port["port"]);
    let of_service =
        spec["ports"].as_array().into_iter().flatten().filter(|port| port.get("targetPort").is_some());
    of_rules.chain(of_service.map(|port| &port["targetPort"])).filter_map(Value::as_str).collect()
}

#[tokio::test]
async fn no_role_uses_wildcards() -> Result<()> {
    let cluster = shared::cluster().await?;
    let objects = built(cluster, "base")?;
    let roles = [of_kind(&objects, "ClusterRole"), of_kind(&objects, "Role")].concat();
    ensure!(roles.len() == 6, "{} roles", roles.len());
    for role in roles {
        for rule in role.data["rules"].as_array().context("a role without rules")? {
            for list in ["apiGroups", "resources", "verbs"] {
                let entries = rule[list].as_array().context("a rule that is not about resources")?;
                ensure!(!entries.contains(&json!("*")), "{}: {rule}", name(role));
            }
            if name(role) == "multinet-dns" {
                ensure!(rule["verbs"] == json!(["list", "watch"]), "multinet-dns may not only read: {rule}");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_registry_overlay_prefixes_all_images() -> Result<()> {
    let cluster = shared::cluster().await?;
    let objects = built(cluster, "overlays/registry")?;
    for deployment in of_kind(&objects, "Deployment") {
        for container in containers(deployment) {
            let wanted = format!("registry.example.com/multinet/{}:{VERSION}", name(deployment));
            ensure!(container["image"] == wanted, "{container}");
        }
    }
    ensure!(objects.len() == built(cluster, "base")?.len(), "the overlay leaves objects out");
    Ok(())
}

/// Installed without mirrors, by kustomize or by Helm, the controller has no right to write the
/// core EndpointSlices that cluster DNS and gateways follow.
#[tokio::test]
async fn the_right_to_write_core_slices_can_be_left_out() -> Result<()> {
    let cluster = shared::cluster().await?;
    let writes = |role: &DynamicObject| {
        let rules = role.data["rules"].as_array().into_iter().flatten();
        let mut of_slices = rules.filter(|rule| rule["apiGroups"] == json!(["discovery.k8s.io"]));
        of_slices.any(|rule| rule["verbs"] != json!(["list", "watch"]))
    };
    let with = built(cluster, "base")?;
    let writers: Vec<_> =
        of_kind(&with, "ClusterRole").into_iter().filter(|role| writes(role)).map(name).collect();
    ensure!(writers == ["multinet-controller-mirrors"], "{writers:?}");

    let text = fs::read_to_string(repository().join("docs/install.md"))?;
    let component = blocks(&text).into_iter().find(|block| block.starts_with("components:"));
    let component = component.context("docs/install.md shows no components")?;
    let helm = helm::rendered(cluster, "--set mirrors.enabled=false")?;
    let without = copy_of_overlay(cluster, &component)?;
    for object in with.iter().filter(|object| kind(object).starts_with("ClusterRole")) {
        let is_left = without.iter().any(|left| (kind(left), name(left)) == (kind(object), name(object)));
        let in_chart = helm.contains_key(&format!("{} {}", kind(object), name(object)));
        let expected = name(object) != "multinet-controller-mirrors";
        ensure!((is_left, in_chart) == (expected, expected), "{}: {is_left}, {in_chart}", name(object));
    }
    ensure!(without.len() == with.len() - 2, "{} objects of {}", without.len(), with.len());
    Ok(())
}

/// Renders a copy of the overlay with these lines added.
pub(crate) fn copy_of_overlay(cluster: &Cluster, more: &str) -> Result<Vec<DynamicObject>> {
    let folder = tempfile::tempdir()?;
    let copy = folder.path().display();
    shell(cluster, &format!("cp -r deploy/crds deploy/kustomize {copy}"))?;
    let overlay = folder.path().join("kustomize/overlays/registry/kustomization.yaml");
    fs::write(&overlay, fs::read_to_string(&overlay)? + more)?;
    parse(&shell(cluster, &format!("kubectl kustomize {copy}/kustomize/overlays/registry"))?)
}

/// Uses the documented patch for clusters with another domain in a copy of the overlay.
#[tokio::test]
async fn the_documented_zone_patch_reaches_both_programs() -> Result<()> {
    let cluster = shared::cluster().await?;
    let text = fs::read_to_string(repository().join("docs/install.md"))?;
    let patches = blocks(&text).into_iter().find(|block| block.starts_with("patches:"));
    let patches = patches.context("docs/install.md shows no patches")?;
    let objects = copy_of_overlay(cluster, &patches)?;
    let deployments = of_kind(&objects, "Deployment");
    ensure!(deployments.len() == 2, "{} Deployments", deployments.len());
    for container in deployments.into_iter().flat_map(containers) {
        let flags = container["args"].as_array().context("no flags")?;
        ensure!(flags.contains(&json!("--zone=multinet.example.internal")), "{container}");
        ensure!(flags.len() > 1, "the patch removes other flags: {container}");
    }
    Ok(())
}

#[tokio::test]
async fn the_component_for_a_zone_of_vertices_adds_the_flag_to_multinet_dns_only() -> Result<()> {
    let cluster = shared::cluster().await?;
    let objects = copy_of_overlay(cluster, "components:\n- ../../components/vertex-zone\n")?;
    for deployment in of_kind(&objects, "Deployment") {
        for container in containers(deployment) {
            let flags = container["args"].as_array().context("no flags")?;
            let has_flag = flags.contains(&json!("--vertex-zone=vertexdomain.local"));
            ensure!(has_flag == (name(deployment) == "multinet-dns"), "{container}");
        }
    }
    Ok(())
}

#[test]
fn the_kustomization_lists_all_definitions() -> Result<()> {
    let folder = repository().join("deploy/crds");
    let listed = fs::read_to_string(folder.join("Kustomization"))?;
    let files = files_in("deploy/crds")?;
    ensure!(files.len() == 2, "{} definitions", files.len());
    for file in files {
        let file = file.strip_prefix(&folder)?.display();
        ensure!(listed.lines().any(|line| line == format!("- {file}")), "{file} is not listed");
    }
    Ok(())
}

#[test]
fn images_are_built_with_the_toolchain_of_the_tests() -> Result<()> {
    let toolchain = fs::read_to_string(repository().join("rust-toolchain.toml"))?;
    let version = toolchain.split('"').nth(1).context("rust-toolchain.toml names no version")?;
    let dockerfile = fs::read_to_string(repository().join("deploy/Dockerfile"))?;
    ensure!(dockerfile.contains(&format!("FROM rust:{version}-")), "deploy/Dockerfile is not for {version}");
    // A program that is linked with a C library needs that of the same Debian release.
    let release =
        dockerfile.split_once(&format!("FROM rust:{version}-")).and_then(|(_, rest)| rest.split(' ').next());
    let release = release.context("deploy/Dockerfile names no release")?;
    ensure!(dockerfile.contains(&format!("FROM debian:{release}-slim ")), "no image has Debian {release}");
    Ok(())
}

/// Cargo needs all members of the workspace, also those that are not in an image.
#[test]
fn the_image_context_has_all_workspace_members() -> Result<()> {
    let manifest = fs::read_to_string(repository().join("Cargo.toml"))?;
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = ")).context("no members")?;
    let members: Vec<&str> = members.split('"').skip(1).step_by(2).collect();
    ensure!(members.contains(&"dns-server"), "{members:?}");
    let sent = fs::read_to_string(repository().join("deploy/Dockerfile.dockerignore"))?;
    for member in members {
        let folder = member.split('/').next().unwrap_or_default();
        ensure!(sent.lines().any(|line| line == format!("!{folder}")), "{folder} is not in the context");
    }
    Ok(())
}

/// Returns the stage of an image: its lines, without the first.
fn stage<'a>(dockerfile: &'a str, name: &str) -> Option<&'a str> {
    let (_, stage) = dockerfile.split_once(&format!(" AS {name}\n"))?;
    Some(stage.split("\nFROM ").next().unwrap_or(stage))
}

#[test]
fn images_have_the_files_that_others_copy_from_them() -> Result<()> {
    let dockerfile = fs::read_to_string(repository().join("deploy/Dockerfile"))?;
    let copies = |text: &str| -> Vec<(String, String)> {
        let copies = text.split("COPY --from=").skip(1);
        let words = copies.map(|rest| rest.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>());
        words.filter_map(|words| Some((words.first()?.clone(), words.get(1)?.clone()))).collect()
    };
    for (from, file) in copies(&dockerfile) {
        let built = stage(&dockerfile, &from).with_context(|| format!("there is no stage {from}"))?;
        // Programs are copied in a loop over the rest of their names.
        let name = file.trim_start_matches('/').trim_start_matches("multinet-");
        ensure!(built.contains(name), "{from} does not build {file}");
    }
    let page = fs::read_to_string(repository().join("docs/frameworks.md"))?;
    let from_images = copies(&page);
    ensure!(from_images.len() >= 2, "{from_images:?}");
    for (image, file) in from_images {
        let name = image.rsplit('/').next().and_then(|image| image.split(':').next()).context("no name")?;
        let image = stage(&dockerfile, name).with_context(|| format!("there is no image {name}"))?;
        ensure!(image.contains(&format!(" {file} {file}\n")), "{name} has no {file}");
    }
    Ok(())
}
