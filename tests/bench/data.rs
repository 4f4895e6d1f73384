//! The same data twice: as our kinds, and as headless Services with EndpointSlices.

use std::net::Ipv4Addr;

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::DynamicObject;
use multinet_testing::objects::Objects;
use serde_json::{Value, json};

/// Writers at one time.
const WRITERS: usize = 8;

/// A data set: services with so many endpoints each, in a namespace of their own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Set {
    pub(crate) namespace: &'static str,
    pub(crate) services: usize,
    pub(crate) endpoints_each: usize,
    /// Endpoints of the sets that are there already.
    before: usize,
    /// Second octet of the first address.
    first_octet: u8,
}

/// A thousand endpoints.
pub(crate) const SMALL: Set =
    Set { namespace: "small", services: 334, endpoints_each: 3, before: 0, first_octet: 0 };

/// A hundred thousand, with those.
pub(crate) const LARGE: Set =
    Set { namespace: "large", services: 990, endpoints_each: 100, before: 1002, first_octet: 16 };

impl Set {
    /// Endpoints in the API server once this set is.
    pub(crate) fn endpoints(self) -> usize {
        self.before + self.services * self.endpoints_each
    }

    fn address(self, service: usize, endpoint: usize) -> Ipv4Addr {
        let number = (service * self.endpoints_each + endpoint + 1) as u32;
        Ipv4Addr::from(u32::from(Ipv4Addr::new(10, self.first_octet, 0, 0)) + number)
    }
}

/// Whose objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ours,
    Core,
}

impl Kind {
    /// The DNS name of a service.
    pub(crate) fn name(self, set: Set, service: usize) -> String {
        let zone = match self {
            Self::Ours => "multinet.cluster.local",
            Self::Core => "cluster.local",
        };
        format!("s{service}.{}.svc.{zone}", set.namespace)
    }

    /// API version and kind of slices.
    pub(crate) fn slice_types(self) -> kube::core::TypeMeta {
        let (api_version, kind) = match self {
            Self::Ours => ("multinetwork.numaproj.io/v1alpha1", "MultiNetworkEndpointSlice"),
            Self::Core => ("discovery.k8s.io/v1", "EndpointSlice"),
        };
        kube::core::TypeMeta { api_version: api_version.into(), kind: kind.into() }
    }

    fn objects(self, set: Set, service: usize) -> Result<[DynamicObject; 2]> {
        let name = format!("s{service}");
        let port = json!([{"name": "rdma", "port": 18515, "protocol": "TCP"}]);
        let endpoints: Vec<Value> = (0..set.endpoints_each)
            .map(|endpoint| {
                json!({
                    "addresses": [set.address(service, endpoint)],
                    "conditions": {"ready": true},
                    "hostname": format!("h{endpoint}"),
                    "nodeName": format!("node-{}", endpoint % 16),
                    "targetRef": {"kind": "Pod", "namespace": set.namespace, "name": format!("{name}-{endpoint}")},
                })
            })
            .collect();
        let metadata = json!({"name": name, "namespace": set.namespace});
        let mut slice_metadata = metadata.clone();
        let (service, slice) = match self {
            Self::Ours => {
                slice_metadata["labels"] = json!({"multinetwork.numaproj.io/service-name": name});
                let network = json!({"kind": "NetworkAttachmentDefinition", "name": "rail0", "namespace": set.namespace});
                (
                    json!({"apiVersion": "multinetwork.numaproj.io/v1alpha1", "kind": "MultiNetworkService",
                        "metadata": metadata, "spec": {"networks": [{"name": "rail0"}], "ports": port}}),
                    json!({"spec": {"addressType": "IPv4", "network": network, "ports": port, "endpoints": endpoints}}),
                )
            }
            Self::Core => {
                slice_metadata["labels"] = json!({"kubernetes.io/service-name": name});
                (
                    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
                        "spec": {"clusterIP": "None", "ports": port}}),
                    json!({"addressType": "IPv4", "ports": port, "endpoints": endpoints}),
                )
            }
        };
        let mut slice = slice;
        let types = self.slice_types();
        slice["apiVersion"] = json!(types.api_version);
        slice["kind"] = json!(types.kind);
        slice["metadata"] = slice_metadata;
        Ok([serde_json::from_value(service)?, serde_json::from_value(slice)?])
    }
}

/// Creates a set in both kinds.
pub(crate) async fn create(objects: &Objects, set: Set) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": set.namespace}});
    objects.apply_object(&serde_json::from_value(namespace)?).await?;
    for kind in [Kind::Ours, Kind::Core] {
        let apis = {
            let [service, slice] = kind.objects(set, 0)?;
            let api = async |object: &DynamicObject| match &object.types {
                Some(types) => objects.api(types, Some(set.namespace)).await,
                None => anyhow::bail!("an object without kind"),
            };
            [api(&service).await?, api(&slice).await?]
        };
        futures::stream::iter(0..set.services)
            .map(|service| {
                let apis = &apis;
                async move {
                    for (api, object) in apis.iter().zip(kind.objects(set, service)?) {
                        api.create(&kube::api::PostParams::default(), &object).await?;
                    }
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(WRITERS)
            .try_collect::<()>()
            .await?;
    }
    Ok(())
}
