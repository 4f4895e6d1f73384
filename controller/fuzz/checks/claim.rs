//! Checks that any ResourceClaim and ResourceSlice are parsed to valid values only.

use super::hold;
use multinet_controller::model::{Claim, DeviceSlice};
use multinet_controller::views::{ResourceClaim, ResourceSlice, V1};
use multinet_runtime::Guarded;

/// Parses `bytes` and checks the result.
pub(crate) fn check(bytes: &[u8]) {
    if let Ok(Guarded::Good(view)) = serde_json::from_slice::<Guarded<ResourceClaim<V1>>>(bytes) {
        let claim = Claim::from(view);
        for device in &claim.devices {
            hold::addresses(&device.addresses);
            hold::device(&device.device);
        }
        claim.unreadable.iter().for_each(hold::line);
    }
    if let Ok(Guarded::Good(view)) = serde_json::from_slice::<Guarded<ResourceSlice<V1>>>(bytes) {
        DeviceSlice::from(view).devices.values().for_each(hold::device);
    }
}
