//! The folders of `deploy/examples` and the objects in the documentation. A real API server with
//! the operators' kinds validates them. The tests check what no API server does: that service,
//! network and pods of a folder refer to each other.

mod commands;
mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context as _, Result, ensure};
use kube::api::{DynamicObject, Patch, PatchParams, ValidationDirective};
use kube::core::TypeMeta;
use multinet_testing::markdown::blocks;
use multinet_testing::objects::{Objects, kind, name, parse, parse_folder};
use multinet_testing::tools::repository;
use serde_json::{Value, json};

use self::parts::pods;
use crate::shared;

/// Namespace of an operator, which the operator itself creates.
const OPERATOR: &str = "nvidia-network-operator";

/// Example, and what is expected of its parts.
struct Example {
    folder: &'static str,
    /// Devices that its pods request.
    devices: &'static [&'static str],
    /// Aliases of the service's networks.
    aliases: &'static [&'static str],
    /// Number of pod templates that the service selects.
    selected: usize,
}

const EXAMPLES: [Example; 9] = [
    on_one_rail("macvlan-nvidia", &[SHARED], 1),
    on_one_rail("sriov", &["nvidia.com/rdma_vfs"], 1),
    on_one_rail("host-device", &["nvidia.com/hostdev"], 1),
    on_one_rail("dranet", &[], 1),
    on_one_rail("torchrun", &[SHARED], 1),
    on_one_rail("mpi", &[SHARED], 1),
    on_one_rail("vllm", &[SHARED], 2),
    on_one_rail("mooncake", &[SHARED], 2),
    Example {
        folder: "ray",
        devices: &["rdma/rdma_shared_device_a", "rdma/rdma_shared_device_b"],
        aliases: &["rail0", "rail1"],
        selected: 1,
    },
];

/// Device that the pods of a node share.
const SHARED: &str = "rdma/hca_shared_devices_a";

const fn on_one_rail(folder: &'static str, devices: &'static [&'static str], selected: usize) -> Example {
    Example { folder, devices, aliases: &["rail0"], selected }
}

/// Variants of the example for Numaflow, whose annotations the tests of multinet-numaflow check.
const NUMAFLOW: [&str; 3] = ["boundary", "dra", "multus"];

/// Mistakes of a user who adapts an example: file, text, mistaken text, and the expected message of
/// the API server.
const MISTAKES: [(&str, &str, &str, &str); 14] = [
    ("macvlan-nvidia/2-network.yaml", "mode: bridge", "mode: brigde", "spec.mode"),
    ("macvlan-nvidia/2-network.yaml", "networkNamespace:", "namespace:", "spec.namespace"),
    ("macvlan-nvidia/3-service.yaml", "alias: rail0", "alias: Rail0", "spec.networks[0].alias"),
    ("macvlan-nvidia/4-pods.yaml", "replicas:", "replica:", "spec.replica"),
    ("sriov/2-network.yaml", "numVfs: 8", "numVFs: 8", "spec.numVFs"),
    ("host-device/2-network.yaml", "resourceName: hostdev", "resourceName: 5", "spec.resourceName"),
    ("ray/4-raycluster.yaml", "groupName: gpu", "group: gpu", "spec.workerGroupSpecs"),
    ("ray/4-raycluster.yaml", "containerPort: 18515", "containerPort: rdma", "containerPort"),
    ("torchrun/4-jobset.yaml", "replicatedJobs:", "jobs:", "spec.jobs"),
    ("torchrun/4-jobset.yaml", "mountPath: /opt", "path: /opt", "volumeMounts"),
    ("mpi/4-mpijob.yaml", "slotsPerWorker: 8", "slotsPerWorker: eight", "spec.slotsPerWorker"),
    ("vllm/4-leaderworkersets.yaml", "size: 2", "sizes: 2", "spec.leaderWorkerTemplate.sizes"),
    ("dranet/2-network.yaml", "deviceClassName:", "deviceClass:", "exactly.deviceClass"),
    ("dranet/2-network.yaml", "device.driver ==", "device.drive ==", "expression"),
];

/// Creates namespaces in the cluster that has our kinds and those of the operators. Returns access
/// to its objects.
async fn stage(namespaces: impl IntoIterator<Item = String>) -> Result<Objects> {
    let objects = shared::bystander().await?.objects().await?;
    for name in namespaces.into_iter().chain([OPERATOR.to_owned()]) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        objects.apply_object(&serde_json::from_value(namespace)?).await?;
    }
    Ok(objects)
}

/// Returns the objects of a folder of `deploy/examples`.
fn example(folder: &str) -> Result<Vec<DynamicObject>> {
    parse_folder(&format!("deploy/examples/{folder}"))
}

/// Sends an object to the API server as a server-side dry run, with unknown and repeated fields as
/// errors.
async fn dry_run(objects: &Objects, object: &DynamicObject) -> Result<()> {
    let types = object.types.as_ref().context("an object without apiVersion and kind")?;
    let api = objects.api(types, object.metadata.namespace.as_deref()).await?;
    let params = PatchParams {
        dry_run: true,
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::apply("multinet-tests")
    };
    let patched = api.patch(name(object), &params, &Patch::Apply(object)).await;
    patched.with_context(|| format!("{} {}", types.kind, name(object)))?;
    // Definitions of other projects check the fields of pod templates, but not that they fit
    // together, as the API server does.
    if types.api_version.contains('.') {
        let types = TypeMeta { api_version: "v1".to_owned(), kind: "PodTemplate".to_owned() };
        let api = objects.api(&types, object.metadata.namespace.as_deref()).await?;
        for (template, _) in pods(object) {
            let template = json!({
                "apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "template"}, "template": template,
            });
            let patched = api.patch("template", &params, &Patch::Apply(template)).await;
            patched.with_context(|| format!("a pod template of {} {}", kind(object), name(object)))?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn every_example_is_valid() -> Result<()> {
    let mut folders = BTreeMap::new();
    for entry in fs::read_dir(repository().join("deploy/examples"))? {
        let folder = entry?.file_name().into_string().unwrap_or_default();
        if folder == "numaflow" {
            for variant in NUMAFLOW {
                let folder = format!("{folder}/{variant}");
                folders.insert(folder.clone(), example(&folder)?);
            }
            continue;
        }
        folders.insert(folder.clone(), example(&folder)?);
    }
    ensure!(folders.len() == EXAMPLES.len() + NUMAFLOW.len() + 1, "{:?}", folders.keys()); // and the quickstart
    let all = folders.values().flatten();
    let namespaces = all.filter(|object| kind(object) == "Namespace").map(|object| name(object).to_owned());
    let objects = stage(namespaces).await?;
    for (folder, example) in &folders {
        for object in example {
            dry_run(&objects, object).await.with_context(|| format!("deploy/examples/{folder}"))?;
        }
    }
    Ok(())
}

/// The pod of the command line gets the documented environment for programs.
#[tokio::test]
async fn the_objects_of_the_documentation_are_valid() -> Result<()> {
    let objects = stage(["vision".to_owned()]).await?;
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "vision"},
    });
    objects.apply_object(&serde_json::from_value(account)?).await?;
    let client = fs::read_to_string(repository().join("docs/client.md"))?;
    let controller = fs::read_to_string(repository().join("docs/controller.md"))?;
    let numaflow = fs::read_to_string(repository().join("docs/numaflow.md"))?;
    let shown = [blocks(&client), blocks(&controller), blocks(&numaflow)].concat();
    let mut kinds = BTreeSet::new();
    for block in shown.iter().filter(|block| block.starts_with("apiVersion:")) {
        for mut object in parse(block)? {
            dry_run(&objects, &object).await?;
            kinds.insert(kind(&object).to_owned());
            if kind(&object) == "Pod" {
                let env = shown
                    .iter()
                    .find(|block| block.trim_start().starts_with("env:"))
                    .context("no environment")?;
                let env: Value = serde_saphyr::from_str(env)?;
                object.data["spec"]["containers"][0]["env"] = env["env"].clone();
                dry_run(&objects, &object).await?;
            }
        }
    }
    let wanted = ["MultiNetworkService", "Pipeline", "Pod"].map(ToOwned::to_owned);
    ensure!(kinds == wanted.into(), "the pages show {kinds:?}");
    Ok(())
}

#[tokio::test]
async fn mistakes_in_examples_are_rejected() -> Result<()> {
    let namespaces = EXAMPLES.iter().map(|it| Ok(name(&example(it.folder)?[0]).to_owned()));
    let objects = stage(namespaces.collect::<Result<Vec<_>>>()?).await?;
    for (file, before, after, complaint) in MISTAKES {
        let yaml = fs::read_to_string(repository().join("deploy/examples").join(file))?;
        ensure!(yaml.contains(before), "{file} has no {before}");
        let mut said = Vec::new();
        for object in parse(&yaml.replacen(before, after, 1))? {
            if let Err(error) = dry_run(&objects, &object).await {
                said.push(format!("{error:#}"));
            }
        }
        let said = said.join("\n");
        ensure!(said.contains(complaint), "{file} with {after:?}: {said:?} does not contain {complaint}");
    }
    Ok(())
}
