//! Access to the objects of a cluster, with manifests applied as by `kubectl`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use k8s_openapi::api::core::v1::Namespace as CoreNamespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind, TypeMeta};
use kube::discovery::{ApiCapabilities, Scope, pinned_kind};
use kube::{Api, Client};
use serde_json::Value;

use crate::manifests;
use crate::process::print_tail;
use crate::tools::files_in;
use crate::wait::eventually;

/// Time limit for the API server to serve a new CustomResourceDefinition.
const ESTABLISH: Duration = Duration::from_secs(30);

/// Access to all objects of a cluster.
#[derive(Clone)]
pub struct Objects {
    client: Client,
}

impl Objects {
    /// Creates access with the permissions of `client`.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Returns the client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Applies every document of a YAML text.
    pub async fn apply(&self, yaml: &str) -> Result<Vec<DynamicObject>> {
        let mut applied = Vec::new();
        for object in parse(yaml)? {
            applied.push(self.apply_object(&object).await?);
        }
        Ok(applied)
    }

    /// Applies every document of a YAML file.
    pub async fn apply_file(&self, path: &Path) -> Result<Vec<DynamicObject>> {
        let yaml = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        self.apply(&yaml).await.with_context(|| path.display().to_string())
    }

    /// Applies one object.
    pub async fn apply_object(&self, object: &DynamicObject) -> Result<DynamicObject> {
        let types = object.types.clone().context("an object without apiVersion and kind")?;
        let name = object.metadata.name.as_deref().context("an object without name")?;
        let api = self.api(&types, object.metadata.namespace.as_deref()).await?;
        let params = PatchParams::apply("multinet-tests").force();
        api.patch(name, &params, &Patch::Apply(object))
            .await
            .with_context(|| format!("cannot apply {} {name}", types.kind))
    }

    /// Returns the API of one kind in a namespace; `None` for cluster-scoped kinds and for all
    /// namespaces.
    pub async fn api(&self, types: &TypeMeta, namespace: Option<&str>) -> Result<Api<DynamicObject>> {
        let kind = GroupVersionKind::try_from(types)?;
        let (resource, capabilities): (ApiResource, ApiCapabilities) = pinned_kind(&self.client, &kind)
            .await
            .with_context(|| format!("the API server has no {} {}", types.api_version, types.kind))?;
        Ok(match (capabilities.scope, namespace) {
            (Scope::Namespaced, Some(namespace)) => Api::namespaced_with(self.client(), namespace, &resource),
            _ => Api::all_with(self.client(), &resource),
        })
    }

    /// Applies the CustomResourceDefinitions in these files, and waits until the API server serves
    /// their kinds.
    pub async fn define(&self, files: impl IntoIterator<Item = PathBuf>) -> Result<()> {
        let mut applied = Vec::new();
        for file in files {
            applied.extend(self.apply_file(&file).await?);
        }
        for crd in applied {
            self.established(&crd).await?;
        }
        Ok(())
    }

    /// Waits until the API server serves the kind that a CustomResourceDefinition defines.
    pub async fn established(&self, crd: &DynamicObject) -> Result<()> {
        let text = |pointer| crd.data.pointer(pointer).and_then(Value::as_str).context("not a CRD");
        let types = TypeMeta {
            api_version: format!("{}/{}", text("/spec/group")?, text("/spec/versions/0/name")?),
            kind: text("/spec/names/kind")?.to_owned(),
        };
        eventually(&format!("the API server to serve {}", types.kind), ESTABLISH, async || {
            self.api(&types, None).await?.list(&Default::default()).await?;
            Ok(())
        })
        .await
    }
}

/// Namespace of one test.
pub struct Namespace {
    name: String,
    objects: Objects,
    logs: Vec<PathBuf>,
}

impl Namespace {
    /// Creates a namespace whose name begins with `prefix`. It is not deleted before its cluster.
    /// Dropping this value prints the ends of the `logs`.
    pub async fn create(objects: Objects, prefix: &str, logs: Vec<PathBuf>) -> Result<Self> {
        let metadata = ObjectMeta { generate_name: Some(format!("{prefix}-")), ..ObjectMeta::default() };
        let namespace = CoreNamespace { metadata, ..CoreNamespace::default() };
        let created = Api::all(objects.client()).create(&PostParams::default(), &namespace).await?;
        let name = created.metadata.name.context("a namespace without a name")?;
        Ok(Self { name, objects, logs })
    }

    /// Returns a namespace that exists.
    pub fn existing(objects: Objects, name: &str) -> Self {
        Self { name: name.to_owned(), objects, logs: Vec::new() }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns access to all objects of the cluster.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Returns the DNS name of a service in this namespace.
    pub fn domain(&self, service: &str) -> String {
        format!("{service}.{}.svc.multinet.cluster.local", self.name)
    }

    /// Applies an object in this namespace.
    pub async fn apply(&self, object: impl Into<DynamicObject>) -> Result<DynamicObject> {
        let mut object = object.into();
        object.metadata.namespace = Some(self.name.clone());
        self.objects.apply_object(&object).await
    }

    /// Deletes an object of one of our kinds, which must exist.
    pub async fn delete(&self, kind: &str, name: &str) -> Result<()> {
        let api = self.objects.api(&manifests::types(kind), Some(&self.name)).await?;
        api.delete(name, &DeleteParams::default())
            .await
            .with_context(|| format!("cannot delete {kind} {name}"))?;
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        for log in &self.logs {
            print_tail(log);
        }
    }
}

/// Returns the kind of an object.
pub fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| &types.kind)
}

/// Returns the name of an object.
pub fn name(object: &DynamicObject) -> &str {
    object.metadata.name.as_deref().unwrap_or_default()
}

/// Returns the objects of all YAML files of a folder of this repository, in the order of `kubectl`.
pub fn parse_folder(folder: &str) -> Result<Vec<DynamicObject>> {
    let mut objects = Vec::new();
    for file in files_in(folder)? {
        objects.extend(parse(&fs::read_to_string(&file)?).with_context(|| file.display().to_string())?);
    }
    Ok(objects)
}

/// Returns the objects of a YAML text.
pub fn parse(yaml: &str) -> Result<Vec<DynamicObject>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).map_err(|error| anyhow!("{error}"))?;
    ensure!(!documents.is_empty(), "no object in {yaml:?}");
    documents
        .into_iter()
        .map(|document| serde_json::from_value(document).context("not a Kubernetes object"))
        .collect()
}
