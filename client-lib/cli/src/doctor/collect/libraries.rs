//! Calls into the libraries of RDMA devices and GPUs.

use std::time::Duration;

use multinet_client::{Cuda, gid, verbs};

use super::super::facts::{DmaBuf, FailedCall};

/// Time that a device may take. It gives up by itself within half of that, unless its driver hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time that the GPUs' driver may take: the first call may load firmware.
const CUDA_PATIENCE: Duration = Duration::from_secs(20);

/// Loads libibverbs. Returns `None` in a build that cannot.
pub(super) fn verbs() -> Option<Result<(), FailedCall>> {
    let loaded = verbs::Library::load().map(drop);
    Some(loaded.map_err(|error| FailedCall { what: error.to_string(), fix: Some(error.hint()) }))
}

/// Returns the number of GPUs that CUDA finds in this pod, or why it cannot say; `None` in a build
/// without CUDA.
pub(super) async fn cuda() -> Option<Result<u32, String>> {
    let said = with_time_limit(CUDA_PATIENCE, Cuda::count).await.map_err(|failure| failure.what);
    Some(said.and_then(|said| said.map_err(|error| error.to_string())))
}

/// Returns the kernel module that lets RDMA devices register memory of NVIDIA's GPUs.
pub(super) fn peermem() -> Option<&'static str> {
    verbs::peermem()
}

/// Lets an RDMA device write to itself by a GID, and returns the path MTU in bytes.
pub(super) async fn writes(place: gid::DeviceGid) -> Result<u32, FailedCall> {
    // Verbs have one byte for each.
    let (Ok(port), Ok(gid_index)) = (u8::try_from(place.port), u8::try_from(place.index)) else {
        return Err(FailedCall { what: format!("verbs cannot name {place}"), fix: None });
    };
    let source = verbs::SourceGid { port, gid_index, gid: place.gid };
    let probed = with_time_limit(PATIENCE, move || verbs::probe(&place.device, source)).await?;
    let failed = |error: verbs::ProbeError| FailedCall { what: error.to_string(), fix: error.hint() };
    probed.map(|probed| probed.mtu).map_err(failed)
}

/// Returns whether a device takes dma-bufs.
pub(super) async fn dma_buf(device: String) -> Result<DmaBuf, FailedCall> {
    with_time_limit(PATIENCE, move || takes_dma_buf(&device)).await.flatten()
}

fn takes_dma_buf(device: &str) -> Result<DmaBuf, FailedCall> {
    let failed = |error: verbs::Error| FailedCall { what: error.to_string(), fix: error.hint() };
    let library = verbs::Library::load()
        .map_err(|error| FailedCall { what: error.to_string(), fix: Some(error.hint()) })?;
    if !library.has_dma_buf() {
        return Ok(DmaBuf::NoCall);
    }
    let devices = library.devices().map_err(failed)?;
    let found = devices.iter().find(|found| found.name() == device);
    let gone = || FailedCall { what: format!("libibverbs does not show {device} any more"), fix: None };
    let context = found.ok_or_else(gone)?.open().map_err(failed)?;
    let takes = verbs::ProtectionDomain::new(&context)
        .and_then(|domain| domain.supports_dma_buf())
        .map_err(failed)?;
    Ok(if takes { DmaBuf::Taken } else { DmaBuf::Refused })
}

/// Runs a call that may hang in a driver, and fails if it takes longer than `patience`.
async fn with_time_limit<T: Send + 'static>(
    patience: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FailedCall> {
    match tokio::time::timeout(patience, tokio::task::spawn_blocking(call)).await {
        Ok(Ok(said)) => Ok(said),
        Ok(Err(error)) => Err(FailedCall { what: error.to_string(), fix: None }),
        Err(_) => {
            Err(FailedCall { what: format!("its driver does not return within {patience:?}"), fix: None })
        }
    }
}
