//! The folders of `deploy/examples` and the objects in the documentation. A real API server with
//! the operators' kinds validates them. The tests check what no API server does: that service,
//! network and pods of a folder refer to each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use kube::api::{DynamicObject, Patch, PatchParams, ValidationDirective};
use kube::core::TypeMeta;
use multinet_testing::markdown::blocks;
use multinet_testing::objects::{Objects, kind, name, parse, parse_folder};
use multinet_testing::tools::repository;
use serde_json::{Value, json};

use crate::shared;

/// Namespace of an operator, which the operator itself creates.
const OPERATOR: &str = "nvidia-network-operator";

/// Examples, with the devices that their pods request and the aliases of their networks.
const EXAMPLES: [(&str, &[&str], &[&str]); 5] = [
    ("macvlan-nvidia", &["rdma/hca_shared_devices_a"], &["rail0"]),
    ("sriov", &["nvidia.com/rdma_vfs"], &["rail0"]),
    ("host-device", &["nvidia.com/hostdev"], &["rail0"]),
    ("ray", &["rdma/rdma_shared_device_a", "rdma/rdma_shared_device_b"], &["rail0", "rail1"]),
    ("dranet", &[], &["rail0"]),
];

/// Variants of the example for Numaflow, whose annotations the tests of multinet-numaflow check.
const NUMAFLOW: [&str; 3] = ["boundary", "dra", "multus"];

/// Mistakes of a user who adapts an example: file, text, mistaken text, and the expected message of
/// the API server.
const MISTAKES: [(&str, &str, &str, &str); 10] = [
    ("macvlan-nvidia/2-network.yaml", "mode: bridge", "mode: brigde", "spec.mode"),
    ("macvlan-nvidia/2-network.yaml", "networkNamespace:", "namespace:", "spec.namespace"),
    ("macvlan-nvidia/3-service.yaml", "alias: rail0", "alias: Rail0", "spec.networks[0].alias"),
    ("macvlan-nvidia/4-pods.yaml", "replicas:", "replica:", "spec.replica"),
    ("sriov/2-network.yaml", "numVfs: 8", "numVFs: 8", "spec.numVFs"),
    ("host-device/2-network.yaml", "resourceName: hostdev", "resourceName: 5", "spec.resourceName"),
    ("ray/4-raycluster.yaml", "groupName: gpu", "group: gpu", "spec.workerGroupSpecs"),
    ("ray/4-raycluster.yaml", "containerPort: 18515", "containerPort: rdma", "containerPort"),
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
    // The definition of RayCluster accepts any pod template; the API server's PodTemplate is
    // strict.
    if types.kind == "RayCluster" {
        let types = TypeMeta { api_version: "v1".to_owned(), kind: "PodTemplate".to_owned() };
        let api = objects.api(&types, object.metadata.namespace.as_deref()).await?;
        for (template, _) in pods(object) {
            let template = json!({
                "apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "template"}, "template": template,
            });
            let patched = api.patch("template", &params, &Patch::Apply(template)).await;
            patched.with_context(|| format!("a pod template of RayCluster {}", name(object)))?;
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
    let namespaces = EXAMPLES.iter().map(|(folder, ..)| Ok(name(&example(folder)?[0]).to_owned()));
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

/// Reference to a network: kind, namespace (none for a DeviceClass) and name.
type Network = (String, Option<String>, String);

/// Returns the networks that the objects of a folder define. Operators create a
/// NetworkAttachmentDefinition of the same name as their own object.
fn defined(objects: &[DynamicObject]) -> BTreeSet<Network> {
    let mut networks = BTreeSet::new();
    for object in objects {
        let namespace = match kind(object) {
            "MacvlanNetwork" | "HostDeviceNetwork" | "SriovNetwork" => {
                let namespace = object.data["spec"]["networkNamespace"].as_str().map(ToOwned::to_owned);
                let definition = "NetworkAttachmentDefinition".to_owned();
                networks.insert((definition, namespace, name(object).to_owned()));
                continue;
            }
            "NetworkAttachmentDefinition" | "ResourceClaimTemplate" => object.metadata.namespace.clone(),
            "DeviceClass" => None,
            _ => continue,
        };
        networks.insert((kind(object).to_owned(), namespace, name(object).to_owned()));
    }
    networks
}

/// Returns the networks that a MultiNetworkService publishes.
fn published(service: &DynamicObject) -> Vec<Network> {
    let networks = service.data["spec"]["networks"].as_array().into_iter().flatten();
    let reference = |network: &Value| {
        let kind = network["kind"].as_str().unwrap_or("NetworkAttachmentDefinition");
        let namespace = network["namespace"].as_str().or(service.metadata.namespace.as_deref());
        let namespace = namespace.filter(|_| kind != "DeviceClass").map(ToOwned::to_owned);
        (kind.to_owned(), namespace, network["name"].as_str().unwrap_or_default().to_owned())
    };
    networks.map(reference).collect()
}

/// Returns the pod templates of a workload, with the labels that its pods get.
fn pods(workload: &DynamicObject) -> Vec<(Value, BTreeMap<String, String>)> {
    let spec = &workload.data["spec"];
    let labels = |template: &Value| -> BTreeMap<String, String> {
        serde_json::from_value(template["metadata"]["labels"].clone()).unwrap_or_default()
    };
    match kind(workload) {
        "Deployment" => vec![(spec["template"].clone(), labels(&spec["template"]))],
        "RayCluster" => {
            let head = json!({"groupName": "headgroup", "template": spec["headGroupSpec"]["template"]});
            let workers = spec["workerGroupSpecs"].as_array().cloned().unwrap_or_default();
            let groups = workers.into_iter().map(|group| ("worker", group)).chain([("head", head)]);
            let pods = groups.map(|(node_type, group)| {
                // As KubeRay labels them (ray-operator/controllers/ray/common).
                let mut labels = labels(&group["template"]);
                labels.insert("ray.io/cluster".to_owned(), name(workload).to_owned());
                labels.insert("ray.io/node-type".to_owned(), node_type.to_owned());
                let group_name = group["groupName"].as_str().unwrap_or_default();
                labels.insert("ray.io/group".to_owned(), group_name.to_owned());
                (group["template"].clone(), labels)
            });
            pods.collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the networks that pods of a template get in this namespace, by Multus' annotation or by
/// claims.
fn attached(template: &Value, namespace: &str, objects: &[DynamicObject]) -> BTreeSet<Network> {
    let mut networks = BTreeSet::new();
    let annotation = &template["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"];
    for network in annotation.as_str().unwrap_or_default().split(',').map(str::trim).filter(|n| !n.is_empty())
    {
        let (namespace, name) = network.split_once('/').unwrap_or((namespace, network));
        let name = name.split('@').next().unwrap_or(name).to_owned();
        networks.insert(("NetworkAttachmentDefinition".to_owned(), Some(namespace.to_owned()), name));
    }
    for claim in template["spec"]["resourceClaims"].as_array().into_iter().flatten() {
        let claimed = claim["resourceClaimTemplateName"].as_str().unwrap_or_default().to_owned();
        let made = |object: &&DynamicObject| {
            kind(object) == "ResourceClaimTemplate"
                && name(object) == claimed
                && object.metadata.namespace.as_deref() == Some(namespace)
        };
        for template in objects.iter().filter(made) {
            for request in
                template.data["spec"]["spec"]["devices"]["requests"].as_array().into_iter().flatten()
            {
                let class = request["exactly"]["deviceClassName"].as_str().unwrap_or_default();
                networks.insert(("DeviceClass".to_owned(), None, class.to_owned()));
            }
        }
        networks.insert(("ResourceClaimTemplate".to_owned(), Some(namespace.to_owned()), claimed));
    }
    networks
}

#[test]
fn the_parts_of_an_example_refer_to_each_other() -> Result<()> {
    for (folder, devices, aliases) in EXAMPLES {
        check(&example(folder)?, devices, aliases).with_context(|| format!("deploy/examples/{folder}"))?;
    }
    Ok(())
}

/// Fails if the service names a network that no object defines, or selects no pods on its networks.
fn check(objects: &[DynamicObject], devices: &[&str], aliases: &[&str]) -> Result<()> {
    let Some(service) = objects.iter().find(|object| kind(object) == "MultiNetworkService") else {
        bail!("no MultiNetworkService");
    };
    let namespace = service.metadata.namespace.as_deref().context("a service without namespace")?;
    let networks = published(service);
    let defined = defined(objects);
    for network in &networks {
        ensure!(defined.contains(network), "no object defines {network:?}, only {defined:?}");
    }
    let named = service.data["spec"]["networks"].as_array().into_iter().flatten();
    let named: Vec<_> = named.filter_map(|network| network["alias"].as_str()).collect();
    ensure!(named == aliases, "the aliases are {named:?}");

    let selector: BTreeMap<String, String> =
        serde_json::from_value(service.data["spec"]["selector"]["matchLabels"].clone())?;
    let mut selected = 0;
    for workload in objects.iter().filter(|object| object.metadata.namespace.as_deref() == Some(namespace)) {
        for (template, labels) in pods(workload) {
            if !selector.iter().all(|(label, value)| labels.get(label) == Some(value)) {
                continue;
            }
            selected += 1;
            let attached = attached(&template, namespace, objects);
            for network in &networks {
                ensure!(attached.contains(network), "the pods are not on {network:?}, but on {attached:?}");
            }
            let limits = &template["spec"]["containers"][0]["resources"]["limits"];
            for device in devices {
                ensure!(limits.get(device).is_some(), "the pods do not request {device}: {limits}");
            }
            let ports = template["spec"]["containers"][0]["ports"].as_array().context("no ports")?;
            for port in service.data["spec"]["ports"].as_array().into_iter().flatten() {
                let is_open = ports.iter().any(|open| open["containerPort"] == port["port"]);
                ensure!(is_open, "the pods have no port {}", port["port"]);
            }
        }
    }
    ensure!(selected == 1, "the service selects {selected} pod templates");

    // For the API server, this field is any text.
    for object in objects {
        if let Some(ipam) = object.data["spec"]["ipam"].as_str() {
            let ipam: Value = serde_json::from_str(ipam).context("ipam is not JSON")?;
            ensure!(ipam["type"] == "whereabouts" && ipam["range"].is_string(), "{ipam}");
        }
    }
    Ok(())
}

#[test]
fn mismatched_parts_of_an_example_are_found() -> Result<()> {
    for (file, before, after, complaint) in [
        ("2-network.yaml", "name: rdma-macvlan", "name: another", "no object defines"),
        (
            "2-network.yaml",
            "networkNamespace: rdma-macvlan",
            "networkNamespace: default",
            "no object defines",
        ),
        ("2-network.yaml", "\"range\":", "range:", "ipam is not JSON"),
        ("3-service.yaml", "alias: rail0", "alias: rail1", "the aliases are"),
        ("3-service.yaml", "app: rping", "app: ping", "selects 0"),
        ("3-service.yaml", "port: 18515", "port: 4791", "no port 4791"),
        ("4-pods.yaml", "networks: rdma-macvlan", "networks: macvlan", "are not on"),
        ("4-pods.yaml", "rdma/hca_shared_devices_a", "rdma/hca_shared_devices_b", "do not request"),
    ] {
        let mut objects = Vec::new();
        for part in ["1-namespace.yaml", "2-network.yaml", "3-service.yaml", "4-pods.yaml"] {
            let path = repository().join("deploy/examples/macvlan-nvidia").join(part);
            objects.extend(changed(&path, if part == file { before } else { "" }, after)?);
        }
        let said = check(&objects, EXAMPLES[0].1, EXAMPLES[0].2).err().map(|error| format!("{error:#}"));
        let said = said.with_context(|| format!("{file} with {after:?} passes the check"))?;
        ensure!(said.contains(complaint), "{file} with {after:?}: {said}");
    }
    Ok(())
}

/// Returns the objects of a file, with every `before` replaced by `after`.
fn changed(path: &Path, before: &str, after: &str) -> Result<Vec<DynamicObject>> {
    let yaml = fs::read_to_string(path)?;
    if before.is_empty() {
        return parse(&yaml);
    }
    ensure!(yaml.contains(before), "{} has no {before}", path.display());
    parse(&yaml.replace(before, after))
}
