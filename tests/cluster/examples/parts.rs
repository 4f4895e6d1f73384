//! Parts of an example: its service, networks and pods, which refer to each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use kube::api::DynamicObject;
use multinet_testing::objects::{kind, name, parse};
use multinet_testing::tools::repository;
use serde_json::{Value, json};

use super::{EXAMPLES, Example, example};

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
pub(super) fn pods(workload: &DynamicObject) -> Vec<(Value, BTreeMap<String, String>)> {
    let spec = &workload.data["spec"];
    let labels = |template: &Value| -> BTreeMap<String, String> {
        serde_json::from_value(template["metadata"]["labels"].clone()).unwrap_or_default()
    };
    // Controllers add labels to those of the template.
    let labelled = |template: &Value, added: &[(&str, &str)]| {
        let mut labels = labels(template);
        labels.extend(added.iter().map(|&(label, value)| (label.to_owned(), value.to_owned())));
        (template.clone(), labels)
    };
    match kind(workload) {
        "Deployment" | "StatefulSet" => vec![labelled(&spec["template"], &[])],
        "JobSet" => {
            let jobs = spec["replicatedJobs"].as_array().into_iter().flatten();
            let added = [("jobset.sigs.k8s.io/jobset-name", name(workload))];
            jobs.map(|job| labelled(&job["template"]["spec"]["template"], &added)).collect()
        }
        "LeaderWorkerSet" => {
            let added = [("leaderworkerset.sigs.k8s.io/name", name(workload))];
            vec![labelled(&spec["leaderWorkerTemplate"]["workerTemplate"], &added)]
        }
        "MPIJob" => {
            let roles = [("Launcher", "launcher"), ("Worker", "worker")];
            let pods = roles.map(|(replicas, role)| {
                let job = ("training.kubeflow.org/job-name", name(workload));
                let added = [job, ("training.kubeflow.org/job-role", role)];
                labelled(&spec["mpiReplicaSpecs"][replicas]["template"], &added)
            });
            pods.into()
        }
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
    for expected in &EXAMPLES {
        let folder = expected.folder;
        check(&example(folder)?, expected).with_context(|| format!("deploy/examples/{folder}"))?;
    }
    Ok(())
}

/// Fails if the service names a network that no object defines, or selects other pods than those on
/// its networks.
fn check(objects: &[DynamicObject], expected: &Example) -> Result<()> {
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
    ensure!(named == expected.aliases, "the aliases are {named:?}");

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
            for device in expected.devices {
                ensure!(limits.get(device).is_some(), "the pods do not request {device}: {limits}");
            }
            let ports = template["spec"]["containers"][0]["ports"].as_array().context("no ports")?;
            for port in service.data["spec"]["ports"].as_array().into_iter().flatten() {
                let is_open = ports.iter().any(|open| open["containerPort"] == port["port"]);
                ensure!(is_open, "the pods have no port {}", port["port"]);
            }
        }
    }
    ensure!(selected == expected.selected, "the service selects {selected} pod templates");

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
        let said = check(&objects, &EXAMPLES[0]).err().map(|error| format!("{error:#}"));
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
