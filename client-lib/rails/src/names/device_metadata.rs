//! Metadata of the devices of ResourceClaims, which drivers of dynamic resource allocation write
//! into containers (Kubernetes enhancement 5304, alpha in 1.36 and beta in 1.37).
//!
//! There is a file `KIND/CLAIM/REQUEST/DRIVER-metadata.json` for each request: a stream of the same
//! object in several API versions, of which a reader takes the first that it knows. A network
//! driver fills it in when the network namespace exists.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{Attachment, ip};
use crate::sys::names;

/// Folder of the files, below the root.
const FOLDER: &str = "var/run/kubernetes.io/dra-device-attributes";
const API_VERSIONS: [&str; 2] = ["metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1"];
/// Attributes that drivers give the PCI address of a device in: the standard one, and as it was
/// called at first.
const PCI: [&str; 2] = ["resource.kubernetes.io/pciBusID", "resource.k8s.io/pciBusID"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeviceMetadata {
    #[serde(default)]
    requests: Vec<ClaimRequest>,
}

#[derive(Deserialize)]
struct ClaimRequest {
    #[serde(default)]
    devices: Vec<Device>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    #[serde(default)]
    attributes: BTreeMap<String, Value>,
    network_data: Option<NetworkData>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NetworkData {
    interface_name: Option<String>,
    #[serde(default)]
    ips: Vec<String>,
}

/// Reads the devices of all claims below a root. Files that cannot be read are left out.
pub(super) fn read(root: &Path) -> Vec<Attachment> {
    let mut found = Vec::new();
    for kind in ["resourceclaims", "resourceclaimtemplates"] {
        let claims = root.join(FOLDER).join(kind);
        for claim in names(&claims) {
            for request in names(&claims.join(&claim)) {
                let folder = claims.join(&claim).join(request);
                let files = names(&folder).into_iter().filter(|file| file.ends_with("-metadata.json"));
                let texts = files.filter_map(|file| fs::read_to_string(folder.join(file)).ok());
                found.extend(texts.flat_map(|text| parse(&claim, &text)));
            }
        }
    }
    found
}

fn parse(claim: &str, text: &str) -> Vec<Attachment> {
    let versions = serde_json::Deserializer::from_str(text).into_iter::<Value>().map_while(Result::ok);
    let known = |value: &Value| value["apiVersion"].as_str().is_some_and(|it| API_VERSIONS.contains(&it));
    let metadata = versions.filter(known).find_map(|value| serde_json::from_value(value).ok());
    let Some(DeviceMetadata { requests }) = metadata else { return Vec::new() };
    let attachment = |device: Device| {
        let pci = |name| device.attributes.get(name).and_then(|value: &Value| value["string"].as_str());
        let pci = PCI.into_iter().find_map(pci).map(str::to_owned);
        // Some drivers do not tell the interface, and devices such as GPUs have none.
        let NetworkData { interface_name, ips } = device.network_data.unwrap_or_default();
        Attachment {
            network: claim.to_owned(),
            interface: interface_name.filter(|name| !name.is_empty()),
            addresses: ips.iter().filter_map(|text| ip(text)).collect(),
            pci,
        }
    };
    requests.into_iter().flat_map(|request| request.devices).map(attachment).collect()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// Metadata of a NIC and of a GPU in one request, as written by Kubernetes' library for drivers
    /// (`k8s.io/dynamic-resource-allocation` 0.37.0, in both of its API versions).
    const METADATA: &str = include_str!("device_metadata.json");

    /// Object of a later library, which stands before these.
    const NEWER: &str =
        r#"{"kind": "DeviceMetadata", "apiVersion": "metadata.resource.k8s.io/v9", "requests": "new"}"#;

    #[test]
    fn devices_are_read_from_the_metadata_of_each_claim() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        let write = |path: &str, text: &str| {
            let file = root.path().join(FOLDER).join(path);
            file.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(file, text)
        };
        write("resourceclaimtemplates/rail0/nic/dra.net-metadata.json", &format!("{NEWER}{METADATA}"))?;
        // A driver creates the file first, and fills it in later.
        write("resourceclaims/rail1/nic/dra.net-metadata.json", "")?;
        write("resourceclaims/rail2/nic/notes.txt", METADATA)?;
        let nic = Attachment {
            network: "rail0".to_owned(),
            interface: Some("net1".to_owned()),
            addresses: vec![[192, 168, 111, 5].into(), "fd00::5".parse().unwrap()],
            pci: Some("0000:19:00.2".to_owned()),
        };
        let gpu = Attachment {
            network: "rail0".to_owned(),
            interface: None,
            addresses: Vec::new(),
            pci: Some("0000:18:00.0".to_owned()),
        };
        let both = [nic, gpu];
        assert_eq!(read(root.path()), both);
        let (beta, alpha) = METADATA.split_at(METADATA.find("\n{").unwrap());
        assert!(beta.contains(API_VERSIONS[0]) && alpha.contains(API_VERSIONS[1]), "{METADATA}");
        assert_eq!([parse("rail0", beta), parse("rail0", alpha)], [both.clone(), both]);
        assert_eq!(read(&root.path().join("nowhere")), []);
        Ok(())
    }

    #[test]
    fn metadata_of_another_form_has_no_devices() {
        for text in [
            "{",
            "[]",
            "{\"apiVersion\": 1}",
            "{\"apiVersion\": \"metadata.resource.k8s.io/v1beta1\", \"requests\": 5}",
        ] {
            assert_eq!(parse("rail0", text), [], "{text}");
        }
    }
}
