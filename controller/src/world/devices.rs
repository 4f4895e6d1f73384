//! What DRA drivers say of their devices.

use std::collections::{HashMap, HashSet};

use multinet_crds::{Device, NetworkKind};
use multinet_runtime::ObjectKey;

use crate::model::{Attachment, ClaimDevice, DeviceId, DeviceSlice, Network};
use crate::relations::Relations;

/// Driver and name of a pool.
pub(super) type Pool = (String, String);

/// All ResourceSlices, by pool.
#[derive(Debug, Default)]
pub(super) struct Devices {
    slices: HashMap<ObjectKey, DeviceSlice>,
    by_pool: Relations<Pool, ObjectKey>,
}

impl Devices {
    /// A slice is new or has changed. Returns the pools of which anything is different.
    pub(super) fn apply(&mut self, slice: DeviceSlice) -> Vec<Pool> {
        if self.slices.get(&slice.key) == Some(&slice) {
            return Vec::new();
        }
        let pool = (slice.driver.clone(), slice.pool.clone());
        let mut changed: Vec<Pool> = self.delete(&slice.key).into_iter().collect();
        self.by_pool.insert(pool.clone(), slice.key.clone());
        self.slices.insert(slice.key.clone(), slice);
        if !changed.contains(&pool) {
            changed.push(pool);
        }
        changed
    }

    /// A slice is gone. Returns its pool.
    pub(super) fn delete(&mut self, key: &ObjectKey) -> Option<Pool> {
        let slice = self.slices.remove(key)?;
        let pool = (slice.driver, slice.pool);
        self.by_pool.remove(&pool, key);
        Some(pool)
    }

    /// The slices that are not among the `live` ones.
    pub(super) fn missing(&self, live: &HashSet<ObjectKey>) -> Vec<ObjectKey> {
        self.slices.keys().filter(|key| !live.contains(*key)).cloned().collect()
    }

    /// The interface that a device of a claim is. `template`: what the claim was made from; `namespace`: the claim's.
    pub(super) fn attachment(
        &self,
        device: &ClaimDevice,
        template: Option<&str>,
        namespace: &str,
    ) -> Attachment {
        let class = device.class.iter().map(|name| Network {
            kind: NetworkKind::DeviceClass,
            namespace: None,
            name: name.clone(),
        });
        let template = template.map(|name| Network {
            kind: NetworkKind::ResourceClaimTemplate,
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        });
        let known = self.find(&device.id).cloned().unwrap_or_default();
        let said = device.device.clone();
        Attachment {
            networks: class.chain(template).collect(),
            addresses: device.addresses.clone(),
            device: Device {
                interface: said.interface.or(known.interface),
                mac: said.mac.or(known.mac),
                rdma_device: said.rdma_device.or(known.rdma_device),
                pci_address: said.pci_address.or(known.pci_address),
                numa_node: said.numa_node.or(known.numa_node),
            },
        }
    }

    /// What the newest generation of the pool says of a device.
    fn find(&self, id: &DeviceId) -> Option<&Device> {
        let pool = (id.driver.clone(), id.pool.clone());
        let slices = self.by_pool.of(&pool).filter_map(|key| self.slices.get(key));
        let newest = slices.clone().map(|slice| slice.generation).max()?;
        slices.filter(|slice| slice.generation == newest).find_map(|slice| slice.devices.get(&id.device))
    }
}
