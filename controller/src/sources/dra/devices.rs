//! Details of devices that DRA drivers publish in ResourceSlices.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use multinet_crds::Device;
use multinet_runtime::ObjectKey;

use crate::model::{DeviceId, DeviceSlice};
use crate::multimap::MultiMap;

/// Names of a driver and of one of its pools.
pub(crate) type PoolKey = (String, String);

/// All ResourceSlices, and the known details of devices in use.
///
/// While a device is in a pod's network namespace, its driver may no longer see it. The driver then
/// publishes it without its RDMA device, or not at all. Known details are therefore kept as long as
/// a claim uses the device.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    slices: HashMap<ObjectKey, DeviceSlice>,
    by_pool: MultiMap<PoolKey, ObjectKey>,
    in_use: HashMap<DeviceId, InUse>,
}

#[derive(Debug, Default)]
struct InUse {
    /// Number of claims that use the device.
    claims: usize,
    facts: Device,
}

impl Devices {
    /// Adds or replaces a ResourceSlice. Returns the pools that have changed.
    pub(crate) fn apply(&mut self, slice: DeviceSlice) -> Vec<PoolKey> {
        if self.slices.get(&slice.key) == Some(&slice) {
            return Vec::new();
        }
        let pool = (slice.driver.clone(), slice.pool.clone());
        let mut changed: Vec<PoolKey> = self.delete(&slice.key).into_iter().collect();
        self.by_pool.insert(pool.clone(), slice.key.clone());
        self.slices.insert(slice.key.clone(), slice);
        if !changed.contains(&pool) {
            changed.push(pool);
        }
        changed
    }

    /// Removes a ResourceSlice. Returns its pool, if the slice was known.
    pub(crate) fn delete(&mut self, key: &ObjectKey) -> Option<PoolKey> {
        let slice = self.slices.remove(key)?;
        let pool = (slice.driver, slice.pool);
        self.by_pool.remove(&pool, key);
        Some(pool)
    }

    /// Returns the keys of the ResourceSlices.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.slices.keys()
    }

    /// Records that a claim uses a device.
    pub(crate) fn acquire(&mut self, id: &DeviceId) {
        self.in_use.entry(id.clone()).or_default().claims += 1;
        self.refresh_facts(id);
    }

    /// Records that a claim no longer uses a device.
    pub(crate) fn release(&mut self, id: &DeviceId) {
        if let Some(device) = self.in_use.get_mut(id) {
            device.claims -= 1;
            if device.claims == 0 {
                self.in_use.remove(id);
            }
        }
    }

    /// Updates the details of a device in use from the slices. Keeps details that the slices no
    /// longer contain.
    pub(crate) fn refresh_facts(&mut self, id: &DeviceId) {
        let shown = self.published(id);
        if let Some(device) = self.in_use.get_mut(id) {
            device.facts = merged(shown, std::mem::take(&mut device.facts));
        }
    }

    /// Returns the known details of a device in use.
    pub(crate) fn facts(&self, id: &DeviceId) -> Device {
        self.in_use.get(id).map(|device| device.facts.clone()).unwrap_or_default()
    }

    /// Returns the details of a device from the slices of its pool's newest generation. As long as
    /// that generation is incomplete, older ones fill the gaps.
    fn published(&self, id: &DeviceId) -> Device {
        let pool = (id.driver.clone(), id.pool.clone());
        let mut generations: BTreeMap<Reverse<i64>, Vec<&DeviceSlice>> = BTreeMap::new();
        for slice in self.by_pool.of(&pool).filter_map(|key| self.slices.get(key)) {
            generations.entry(Reverse(slice.generation)).or_default().push(slice);
        }
        let mut shown = Device::default();
        for slices in generations.values() {
            let found = slices.iter().find_map(|slice| slice.devices.get(&id.device));
            shown = merged(shown, found.cloned().unwrap_or_default());
            if slices.iter().any(|slice| slices.len() >= slice.slice_count) {
                break;
            }
        }
        shown
    }
}

/// Returns the device details in `first`, with gaps filled from `second`.
fn merged(first: Device, second: Device) -> Device {
    Device {
        interface: first.interface.or(second.interface),
        mac: first.mac.or(second.mac),
        rdma_device: first.rdma_device.or(second.rdma_device),
        pci_address: first.pci_address.or(second.pci_address),
        numa_node: first.numa_node.or(second.numa_node),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(device: &str) -> DeviceId {
        DeviceId { driver: "dra.net".into(), pool: "n1".into(), device: device.into() }
    }

    /// A slice of a pool whose generation has two of them.
    fn slice(name: &str, generation: i64, devices: &[(&str, Option<&str>)]) -> DeviceSlice {
        let devices = devices.iter().map(|&(name, rdma)| {
            let device =
                Device { rdma_device: rdma.map(str::to_owned), numa_node: Some(1), ..Device::default() };
            (name.to_owned(), device)
        });
        let key = ObjectKey { namespace: String::new(), name: name.into() };
        let (driver, pool) = ("dra.net".into(), "n1".into());
        DeviceSlice { key, driver, pool, generation, slice_count: 2, devices: devices.collect() }
    }

    fn changed(devices: &mut Devices, slice: DeviceSlice) {
        devices.apply(slice);
        for device in ["a", "b"] {
            devices.refresh_facts(&id(device));
        }
    }

    fn rdma(devices: &Devices, device: &str) -> Option<String> {
        devices.facts(&id(device)).rdma_device
    }

    #[test]
    fn details_of_a_device_are_kept_while_a_claim_uses_it() {
        let mut devices = Devices::default();
        changed(&mut devices, slice("s1", 4, &[("a", Some("mlx5_4"))]));
        changed(&mut devices, slice("s2", 4, &[]));
        devices.acquire(&id("a"));
        devices.acquire(&id("a"));
        for shown in [&[("a", None)][..], &[]] {
            changed(&mut devices, slice("s1", 4, shown));
            assert_eq!(rdma(&devices, "a").as_deref(), Some("mlx5_4"), "{shown:?}");
        }
        changed(&mut devices, slice("s1", 4, &[("a", Some("mlx5_9"))]));
        assert_eq!(rdma(&devices, "a").as_deref(), Some("mlx5_9"), "the driver knows better");
        devices.delete(&slice("s1", 4, &[]).key);
        devices.release(&id("a"));
        assert_eq!(rdma(&devices, "a").as_deref(), Some("mlx5_9"), "another claim has it");
        devices.release(&id("a"));
        devices.acquire(&id("a"));
        assert_eq!(rdma(&devices, "a"), None, "another use of it");
    }

    #[test]
    fn an_incomplete_generation_of_a_pool_is_filled_from_the_last_one() {
        let mut devices = Devices::default();
        changed(&mut devices, slice("s1", 4, &[("a", Some("mlx5_4"))]));
        changed(&mut devices, slice("s2", 4, &[("b", Some("mlx5_5"))]));
        changed(&mut devices, slice("s1", 5, &[("a", Some("mlx5_6"))]));
        devices.acquire(&id("a"));
        devices.acquire(&id("b"));
        assert_eq!(rdma(&devices, "a").as_deref(), Some("mlx5_6"));
        assert_eq!(
            rdma(&devices, "b").as_deref(),
            Some("mlx5_5"),
            "its slice is still of the last generation"
        );
        devices.release(&id("b"));
        changed(&mut devices, slice("s3", 5, &[]));
        devices.acquire(&id("b"));
        assert_eq!(rdma(&devices, "b"), None, "the new generation is complete, and has no such device");
    }
}
