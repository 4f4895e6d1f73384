//! Any ResourceClaim and ResourceSlice: they are read to what a slice of ours may hold, whatever is wrong with them.

#![no_main]
#![forbid(unsafe_code)]

#[path = "../check.rs"]
mod check;

use libfuzzer_sys::fuzz_target;
use multinet_controller::model::{Claim, DeviceSlice};
use multinet_controller::views::{ResourceClaim, ResourceSlice, V1};
use multinet_runtime::Guarded;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Guarded::Good(view)) = serde_json::from_slice::<Guarded<ResourceClaim<V1>>>(bytes) {
        let claim = Claim::from(view);
        for device in &claim.devices {
            check::addresses(&device.addresses);
            check::device(&device.device);
        }
        claim.unreadable.iter().for_each(check::line);
    }
    if let Ok(Guarded::Good(view)) = serde_json::from_slice::<Guarded<ResourceSlice<V1>>>(bytes) {
        DeviceSlice::from(view).devices.values().for_each(check::device);
    }
});
