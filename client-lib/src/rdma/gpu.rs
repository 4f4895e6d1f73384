//! How a device gets at a GPU's memory: found out once for the two of them, and tried before a frame is trusted to it.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use multinet_memory::{Findings, Forced, Gpu, GpuError, Method, choose};
use multinet_verbs::{Context, Domain, peermem, probe_gpu};
use tracing::info;

/// How much memory it is tried with.
const TRIED: NonZeroUsize = NonZeroUsize::new(64 << 10).expect("not zero");

/// Where a device is tried: a port, a row of its GID table, and what is there.
pub(super) type Place = (u8, u8, Ipv6Addr);

/// What has been found out of one device.
#[derive(Debug, Default)]
pub(super) struct Methods(Mutex<HashMap<String, Result<Method, GpuError>>>);

impl Methods {
    /// The method for a GPU. The first time, it tries which works: not for an async task that others wait for.
    pub(super) fn of(
        &self,
        gpu: &dyn Gpu,
        context: &Context,
        place: Place,
        forced: Forced,
    ) -> Result<Method, GpuError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(method) = known.get(gpu.name()) {
            return method.clone();
        }
        let found = find(gpu, context, place, forced);
        known.insert(gpu.name().to_owned(), found.clone());
        found
    }
}

/// Tries what may work, and says once what does, and why not what would be better.
fn find(gpu: &dyn Gpu, context: &Context, place: Place, forced: Forced) -> Result<Method, GpuError> {
    let (device, gpu_name) = (context.name(), gpu.name());
    let memory = gpu.allocate(TRIED)?;
    let findings = Findings {
        export: memory.export().map(drop).map_err(|error| error.to_string()),
        import: takes_dma_buf(context),
        peer_memory: peermem(),
    };
    let choice = choose(&findings, forced);
    let mut against = choice.rejected;
    let works = choice.candidates.into_iter().find(|&method| {
        let tried = match method {
            Method::Staging => Ok(()),
            _ => probe_gpu(context, place, &memory, method).map_err(|error| error.to_string()),
        };
        let works = tried.is_ok();
        against.extend(tried.err().map(|reason| (method, reason)));
        works
    });
    let against: Vec<_> = against.iter().map(|(method, reason)| format!("{method}: {reason}")).collect();
    let against = against.join("; ");
    let Some(method) = works else {
        // Staging needs nothing, so it is not among what was tried: another one is forced.
        return Err(GpuError::new(format!(
            "{device} does not reach {gpu_name} by what is forced, {against}"
        )));
    };
    info!(device, gpu = gpu_name, %method, not = against, "frames to and from a GPU");
    Ok(method)
}

fn takes_dma_buf(context: &Context) -> Result<(), String> {
    let takes = Domain::new(context).and_then(|domain| domain.takes_dma_buf());
    match takes {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{} does not take dma-bufs", context.name())),
        Err(error) => Err(error.to_string()),
    }
}
