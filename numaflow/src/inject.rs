//! Merges a plan into the JSON of a vertex: of a Vertex' spec, of a vertex in a Pipeline, or of a
//! MonoVertex' spec, which have the same fields.
//!
//! Settings of the author win. A part that is not of the expected type is left alone, since
//! Numaflow or the API server is going to reject it.

use multinet_crds::{NetworkKind, NetworkReference};
use serde_json::{Map, Value, json};

use crate::objects::PLAN;
use crate::plan::{End, Settings};

/// Annotation of pods that Multus reads: the requested networks.
pub(crate) const MULTUS_NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// Paths of the user-defined container. A vertex has one of them. A MonoVertex, which only
/// receives, may have all.
const CONTAINERS: [&[&str]; 3] =
    [&["source", "udsource", "container"], &["udf", "container"], &["sink", "udsink", "container"]];

/// The capability that RDMA needs, to lock memory.
const IPC_LOCK: &str = "IPC_LOCK";

/// Object of JSON.
pub type JsonObject = Map<String, Value>;

/// Returns those fields of a Vertex' spec that have to change for its plan, as they are then. `end`
/// is `None` if the vertex is at no edge; then only a stamp is removed.
pub fn changes(namespace: &str, spec: &JsonObject, end: Option<&End>, settings: &Settings) -> JsonObject {
    let mut wanted = spec.clone();
    match end {
        Some(end) => {
            inject(namespace, &mut wanted, end, settings);
            if let Some(annotations) =
                object(&mut wanted, "metadata").and_then(|it| object(it, "annotations"))
            {
                annotations.insert(PLAN.to_owned(), json!(end.stamp(settings)));
            }
        }
        // Numaflow never writes a stamp, so the author has, in the Pipeline.
        None => drop(
            wanted
                .get_mut("metadata")
                .and_then(|it| it.get_mut("annotations"))
                .and_then(|it| it.as_object_mut()?.remove(PLAN)),
        ),
    }
    wanted.retain(|field, value| spec.get(field) != Some(value));
    wanted
}

/// Merges a plan into a vertex in this namespace.
pub fn inject(namespace: &str, vertex: &mut JsonObject, end: &End, settings: &Settings) {
    let of_kind = |kind| end.networks.iter().filter(move |network| network.kind == kind);
    request_networks(namespace, vertex, of_kind(NetworkKind::NetworkAttachmentDefinition));
    let mut claims = Vec::new();
    for network in of_kind(NetworkKind::ResourceClaimTemplate) {
        claims.extend(claim(vertex, network));
    }
    if !end.sources.is_empty()
        && let Some(scale) = object(vertex, "scale")
    {
        // Numaflow starts a vertex without pods only when messages wait for it. Frames do not count
        // as such, and their sender would wait for ever.
        scale.entry("min").or_insert(json!(1));
    }
    let Some(container) = container(vertex) else { return };
    add_environment(container, end);
    if (!claims.is_empty() || !end.resources.is_empty())
        && let Some(resources) = object(container, "resources")
    {
        add_resources(resources, end, &claims);
    }
    if settings.ipc_lock {
        add_ipc_lock(container);
    }
}

/// Returns the user-defined container of a vertex.
fn container(vertex: &mut JsonObject) -> Option<&mut JsonObject> {
    let found = |path: &&&[&str]| {
        let mut at = vertex.get(path[0]);
        for field in &path[1..] {
            at = at.and_then(|value| value.get(field));
        }
        at.is_some_and(Value::is_object)
    };
    let path = CONTAINERS.iter().find(found)?;
    let mut at = vertex;
    for field in *path {
        at = at.get_mut(*field)?.as_object_mut()?;
    }
    Some(at)
}

/// Adds networks to those that the author requests of Multus.
fn request_networks<'a>(
    namespace: &str,
    vertex: &mut JsonObject,
    networks: impl Iterator<Item = &'a NetworkReference>,
) {
    let mut networks = networks.peekable();
    if networks.peek().is_none() {
        return;
    }
    let Some(annotations) = object(vertex, "metadata").and_then(|it| object(it, "annotations")) else {
        return;
    };
    let text = annotations.get(MULTUS_NETWORKS).and_then(Value::as_str).unwrap_or_default().trim();
    let names: Vec<&str> = text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    // Multus takes a text with one of these characters for JSON.
    let is_json = text.contains(['[', '{', '"']);
    let mut requests = if is_json {
        let Ok(Value::Array(requests)) = serde_json::from_str(text) else { return };
        requests
    } else {
        names.iter().map(|name| request(name)).collect()
    };
    let is_asked_for = |network: &&NetworkReference| {
        requests.iter().any(|request| {
            // Multus takes an empty namespace for that of the pod, too.
            let of = request["namespace"].as_str().filter(|of| !of.is_empty());
            request["name"] == *network.name
                && of.unwrap_or(namespace) == network.namespace.as_deref().unwrap_or(namespace)
        })
    };
    let missing: Vec<String> = networks
        .filter(|network| !is_asked_for(network))
        .map(|network| {
            network.namespace.as_ref().map(|of| format!("{of}/")).unwrap_or_default() + &network.name
        })
        .collect();
    // In a list with commas, Multus takes no name with a dot.
    let merged = if is_json || missing.iter().any(|name| name.contains('.')) {
        requests.extend(missing.iter().map(|name| request(name)));
        Value::Array(requests).to_string()
    } else {
        names.into_iter().chain(missing.iter().map(String::as_str)).collect::<Vec<_>>().join(",")
    };
    annotations.insert(MULTUS_NETWORKS.to_owned(), json!(merged));
}

/// Returns the request in JSON that Multus also takes as `namespace/name@interface`.
fn request(text: &str) -> Value {
    let (text, interface) = text.split_once('@').map_or((text, None), |(text, it)| (text, Some(it)));
    let (namespace, name) = text.split_once('/').map_or((None, text), |(of, name)| (Some(of), name));
    let mut request = json!({"name": name.trim()});
    for (field, value) in [("namespace", namespace), ("interface", interface)] {
        if let Some(value) = value {
            request[field] = json!(value.trim());
        }
    }
    request
}

/// Adds a claim from a template to the pod, unless it has one. Returns its name in the pod; `None`
/// if the author uses the name for another claim.
fn claim(vertex: &mut JsonObject, network: &NetworkReference) -> Option<String> {
    let claims = list(vertex, "resourceClaims")?;
    if let Some(known) = claims.iter().find(|claim| claim["resourceClaimTemplateName"] == *network.name) {
        return known["name"].as_str().map(str::to_owned);
    }
    let name = network.alias();
    if claims.iter().any(|claim| claim["name"] == name) {
        return None;
    }
    claims.push(json!({"name": name, "resourceClaimTemplateName": network.name}));
    Some(name.to_owned())
}

/// Adds environment variables, which client libraries read.
fn add_environment(container: &mut JsonObject, end: &End) {
    let Some(known) = list(container, "env") else { return };
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let mut add = |name: &str, key: &str, value: Value| {
        if !known.iter().any(|variable| variable["name"] == name) {
            known.push(json!({"name": name, key: value}));
        }
    };
    if !end.targets.is_empty() {
        add("MULTINET_TARGETS", "value", json!(end.targets.join(",")));
        add("VERTEX_DOMAIN_TARGETS", "value", json!(end.targets.join(",")));
    }
    if !end.sources.is_empty() {
        add("MULTINET_SOURCES", "value", json!(end.sources.join(",")));
    }
    if let [network] = &end.networks[..] {
        add("MULTINET_NETWORK", "value", json!(network.alias()));
    }
    add("MULTINET_POD_NAME", "valueFrom", field("metadata.name"));
    add("MULTINET_POD_UID", "valueFrom", field("metadata.uid"));
    add("MULTINET_NODE_NAME", "valueFrom", field("spec.nodeName"));
    add("MULTINET_ZONE_NAME", "valueFrom", field("metadata.labels['topology.kubernetes.io/zone']"));
}

/// Adds device resources and claims to those of the container.
fn add_resources(resources: &mut JsonObject, end: &End, claims: &[String]) {
    let is_set = |resources: &JsonObject, list: &str, name: &String| {
        resources.get(list).is_some_and(|it| it.get(name).is_some())
    };
    for (name, number) in &end.resources {
        // Where only limits are set, the API server takes them for requests too.
        if !is_set(resources, "requests", name)
            && let Some(limits) = object(resources, "limits")
        {
            limits.entry(name.clone()).or_insert(json!(number.to_string()));
        }
    }
    if !claims.is_empty()
        && let Some(known) = list(resources, "claims")
    {
        for name in claims {
            if !known.iter().any(|claim| claim["name"] == **name) {
                known.push(json!({"name": name}));
            }
        }
    }
}

/// Adds the capability to lock memory, unless the author has decided about it.
fn add_ipc_lock(container: &mut JsonObject) {
    let capabilities = object(container, "securityContext").and_then(|it| object(it, "capabilities"));
    let Some(capabilities) = capabilities else { return };
    let has = |list: &str, name: &str| {
        capabilities.get(list).and_then(Value::as_array).is_some_and(|all| all.iter().any(|it| it == name))
    };
    if has("drop", IPC_LOCK) || has("add", IPC_LOCK) || has("add", "ALL") {
        return;
    }
    if let Some(added) = list(capabilities, "add") {
        added.push(json!(IPC_LOCK));
    }
}

/// Returns an object's field that is an object, which is created if it is absent; `None` if it is
/// of another type.
pub fn object<'a>(parent: &'a mut JsonObject, field: &str) -> Option<&'a mut JsonObject> {
    let value = parent.entry(field).or_insert(Value::Null);
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut()
}

/// Returns an object's field that is a list, which is created if it is absent; `None` if it is of
/// another type.
fn list<'a>(parent: &'a mut JsonObject, field: &str) -> Option<&'a mut Vec<Value>> {
    let value = parent.entry(field).or_insert(Value::Null);
    if value.is_null() {
        *value = json!([]);
    }
    value.as_array_mut()
}

#[cfg(test)]
mod tests;
