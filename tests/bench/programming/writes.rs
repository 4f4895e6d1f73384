//! Cost of writing a slice, by verb and by size.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http::Request;
use multinet_testing::manifests::SLICE;
use multinet_testing::objects::Namespace;
use multinet_testing::usage::cpu_seconds;
use serde_json::{Value, json};

use super::stage::Stage;

/// Compared numbers of endpoints per slice.
pub(crate) const SIZES: [usize; 7] = [4, 10, 25, 50, 100, 250, 1000];

/// The size at which verbs are compared.
pub(crate) const SIZE: usize = 100;

/// Endpoints created in slices of each size.
pub(crate) const CREATED: usize = 2000;

/// Rounds in which the verbs or sizes take turns.
const ROUNDS: usize = 4;

/// An annotation that the controller writes with each change.
const TRIGGER: &str = "multinetwork.numaproj.io/last-change-trigger-time";

/// Method to change one endpoint of a slice without overwriting concurrent changes of other
/// writers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// The controller's method.
    Put,
    /// The method of most clients.
    PutTracked,
    JsonPatch,
    Apply,
}

impl Verb {
    pub(crate) const ALL: [Self; 4] = [Self::Put, Self::PutTracked, Self::JsonPatch, Self::Apply];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Put => "update (PUT with resourceVersion) that drops managedFields",
            Self::PutTracked => "update that keeps them",
            Self::JsonPatch => "JSON patch with a test of resourceVersion",
            Self::Apply => "server-side apply with resourceVersion",
        }
    }
}

/// Cost of a write.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cost {
    pub(crate) times: Vec<Duration>,
    /// CPU time of the API server.
    pub(crate) cpu_seconds: f64,
}

/// Measured values.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) verbs: Vec<(Verb, Cost)>,
    /// Size, bytes of the object, updates with PUT, creations.
    pub(crate) sizes: Vec<(usize, usize, Cost, Cost)>,
}

/// Measures while no program watches slices.
pub(crate) async fn measure(stage: &Stage, writes: usize) -> Result<Figures> {
    let bench = Bench {
        namespace: stage.cluster.temp_namespace("writes").await?,
        stage,
        apiserver: stage.cluster.apiserver_pid().context("the API server does not run")?,
    };
    let mut slices = Vec::new();
    for verb in Verb::ALL {
        slices.push((
            verb,
            bench.slice(&format!("{verb:?}").to_lowercase(), SIZE, verb).await?,
            Cost::default(),
        ));
    }
    let mut sizes = Vec::new();
    for size in SIZES {
        sizes.push((size, bench.slice(&format!("size-{size}"), size, Verb::Put).await?, Cost::default()));
    }
    for _ in 0..ROUNDS {
        for (verb, slice, cost) in &mut slices {
            bench.update(*verb, slice, writes / ROUNDS, cost).await?;
        }
        for (_, slice, cost) in &mut sizes {
            bench.update(Verb::Put, slice, writes / ROUNDS, cost).await?;
        }
    }
    let mut figures = Figures { verbs: Vec::new(), sizes: Vec::new() };
    figures.verbs.extend(slices.into_iter().map(|(verb, _, cost)| (verb, cost)));
    for (size, slice, updates) in sizes {
        let created = bench.create(size).await?;
        figures.sizes.push((size, slice.body(Verb::Put).to_string().len(), updates, created));
    }
    Ok(figures)
}

struct Bench<'s> {
    namespace: Namespace,
    stage: &'s Stage,
    apiserver: u32,
}

/// A slice as the API server stores it, without managedFields.
struct Slice {
    object: Value,
    changes: usize,
}

impl Bench<'_> {
    fn path(&self, name: &str) -> String {
        let namespace = self.namespace.name();
        format!(
            "/apis/multinetwork.numaproj.io/v1alpha1/namespaces/{namespace}/multinetworkendpointslices{name}"
        )
    }

    /// Creates a slice with the verb that changes it later.
    async fn slice(&self, name: &str, size: usize, verb: Verb) -> Result<Slice> {
        let object = object(self.namespace.name(), name, size);
        let mut slice = Slice { object, changes: 0 };
        let request = match verb {
            Verb::Apply => self.request(verb, &slice)?,
            Verb::Put | Verb::PutTracked | Verb::JsonPatch => post(&self.path(""), &slice.object)?,
        };
        slice.store(&self.stage.objects.client().request_text(request).await?)?;
        Ok(slice)
    }

    /// Changes endpoints one after the other.
    async fn update(&self, verb: Verb, slice: &mut Slice, count: usize, cost: &mut Cost) -> Result<()> {
        let client = self.stage.objects.client();
        let before = cpu_seconds(self.apiserver)?;
        for _ in 0..count {
            slice.change();
            let request = self.request(verb, slice)?;
            let begun = Instant::now();
            let answer = client.request_text(request).await?;
            cost.times.push(begun.elapsed());
            slice.store(&answer)?;
        }
        cost.cpu_seconds += cpu_seconds(self.apiserver)? - before;
        Ok(())
    }

    fn request(&self, verb: Verb, slice: &Slice) -> Result<Request<Vec<u8>>> {
        let name = slice.object["metadata"]["name"].as_str().context("a slice without name")?;
        let (method, parameters, content) = match verb {
            Verb::Put | Verb::PutTracked => ("PUT", "?fieldManager=bench", "application/json"),
            Verb::JsonPatch => ("PATCH", "?fieldManager=bench", "application/json-patch+json"),
            Verb::Apply => ("PATCH", "?fieldManager=bench&force=true", "application/apply-patch+yaml"),
        };
        let request = Request::builder()
            .method(method)
            .uri(self.path(&format!("/{name}{parameters}")))
            .header("content-type", content);
        Ok(request.body(slice.body(verb).to_string().into_bytes())?)
    }

    /// Creates slices until they have [`CREATED`] endpoints.
    async fn create(&self, size: usize) -> Result<Cost> {
        let client = self.stage.objects.client();
        let mut times = Vec::new();
        let before = cpu_seconds(self.apiserver)?;
        for number in 0..CREATED / size {
            let request =
                post(&self.path(""), &object(self.namespace.name(), &format!("new-{size}-{number}"), size))?;
            let begun = Instant::now();
            client.request_text(request).await?;
            times.push(begun.elapsed());
        }
        Ok(Cost { times, cpu_seconds: cpu_seconds(self.apiserver)? - before })
    }
}

impl Slice {
    /// Flips the next endpoint.
    fn change(&mut self) {
        let endpoint = self.changed_endpoint();
        let conditions = &mut self.object["spec"]["endpoints"][endpoint]["conditions"];
        let is_ready = conditions["ready"] == json!(true);
        *conditions = json!({"ready": !is_ready, "serving": !is_ready, "terminating": false});
        self.changes += 1;
        self.object["metadata"]["annotations"][TRIGGER] = trigger(self.changes);
    }

    /// Returns the endpoint that the next change flips.
    fn changed_endpoint(&self) -> usize {
        let endpoints = self.object["spec"]["endpoints"].as_array().map_or(1, Vec::len);
        self.changes * 7 % endpoints
    }

    /// Returns the body of the request: the whole slice, or its last change.
    fn body(&self, verb: Verb) -> Value {
        if verb == Verb::Put {
            let mut object = self.object.clone();
            object["metadata"]["managedFields"] = json!([{}]);
            return object;
        }
        if verb != Verb::JsonPatch {
            return self.object.clone();
        }
        let before = Self { object: self.object.clone(), changes: self.changes.saturating_sub(1) };
        let endpoint = before.changed_endpoint();
        json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": self.object["metadata"]["resourceVersion"]},
            {"op": "replace", "path": format!("/metadata/annotations/{}", TRIGGER.replace('/', "~1")),
                "value": self.object["metadata"]["annotations"][TRIGGER]},
            {"op": "replace", "path": format!("/spec/endpoints/{endpoint}/conditions"),
                "value": self.object["spec"]["endpoints"][endpoint]["conditions"]},
        ])
    }

    /// Stores the version from the answer to a write.
    fn store(&mut self, answer: &str) -> Result<()> {
        let answer: Value = serde_json::from_str(answer)?;
        ensure!(answer["spec"] == self.object["spec"], "the API server stored another spec");
        self.object["metadata"]["resourceVersion"] = answer["metadata"]["resourceVersion"].clone();
        Ok(())
    }
}

fn post(path: &str, object: &Value) -> Result<Request<Vec<u8>>> {
    let request =
        Request::post(format!("{path}?fieldManager=bench")).header("content-type", "application/json");
    Ok(request.body(object.to_string().into_bytes())?)
}

fn trigger(count: usize) -> Value {
    let time = Duration::from_micros(count as u64);
    json!(format!("2026-01-01T00:00:00.{:06}Z", time.as_micros()))
}

/// Returns a slice as the controller writes it.
fn object(namespace: &str, name: &str, size: usize) -> Value {
    let endpoints: Vec<Value> = (0..size)
        .map(|i| {
            let (high, low) = (i / 250, i % 250 + 1);
            json!({
                "addresses": [format!("10.90.{high}.{low}")],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": format!("gpu-{}", i % 16),
                "zone": format!("zone-{}", i % 4),
                "targetRef": {"kind": "Pod", "namespace": namespace, "name": format!("infer-6d4b75cb6d-{i:05}"),
                    "uid": format!("7f1c2d3e-0000-4000-8000-{i:012}")},
                "device": {"interface": "net1", "mac": format!("02:00:00:00:{high:02x}:{low:02x}"),
                    "rdmaDevice": "mlx5_2", "pciAddress": "0000:18:00.2"},
            })
        })
        .collect();
    json!({
        "apiVersion": "multinetwork.numaproj.io/v1alpha1",
        "kind": SLICE,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"multinetwork.numaproj.io/service-name": name, "multinetwork.numaproj.io/managed-by": "bench"},
            "annotations": {TRIGGER: trigger(0)},
        },
        "spec": {
            "addressType": "IPv4",
            "network": {"kind": "NetworkAttachmentDefinition", "name": "rdma-a", "namespace": namespace, "alias": "rail0"},
            "ports": [{"name": "rdma", "port": 18515, "protocol": "TCP"}],
            "endpoints": endpoints,
        },
    })
}
