//! How a device gets at a GPU's memory: found out once for the two of them, and tried before a frame is trusted to it.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use multinet_memory::{Findings, Forced, Gpu, GpuError, GpuMemory, Method, choose};
use multinet_verbs::{Context, Domain, peermem, probe_gpu};
use tracing::{info, warn};

/// How much memory it is tried with.
const TRIED: NonZeroUsize = NonZeroUsize::new(64 << 10).expect("not zero");

/// Where a device is tried: a port, a row of its GID table, and what is there.
pub(super) type Place = (u8, u8, Ipv6Addr);

/// What has been found out of one device.
#[derive(Debug, Default)]
pub(super) struct Methods(Mutex<HashMap<String, Arc<OnceLock<Found>>>>);

/// The method for a GPU, or why the forced one does not work.
type Found = Result<Method, GpuError>;

impl Methods {
    /// The method for a GPU. The first time, it tries which works, for some seconds: not for an async task.
    pub(super) fn of(&self, gpu: &dyn Gpu, context: &Context, place: Place, forced: Forced) -> Found {
        self.entry(gpu).get_or_init(|| find(gpu, context, place, forced)).clone()
    }

    /// The method for the GPU of this memory, once it is known. A thread of its own finds it out.
    pub(super) fn known(
        &self,
        memory: &Arc<dyn GpuMemory>,
        context: &Context,
        place: Place,
        forced: Forced,
    ) -> Option<Found> {
        let entry = self.entry(memory.gpu());
        if let Some(found) = entry.get() {
            return Some(found.clone());
        }
        // The first one only: those that come meanwhile find somebody beside the map who has it.
        if Arc::strong_count(&entry) == 2 {
            let (memory, context) = (Arc::clone(memory), context.clone());
            let finding = move || {
                entry.get_or_init(|| find(memory.gpu(), &context, place, forced));
            };
            if let Err(error) = thread::Builder::new().name("multinet-gpu".to_owned()).spawn(finding) {
                warn!("frames from GPUs are copied: cannot start a thread: {error}");
            }
        }
        None
    }

    fn entry(&self, gpu: &dyn Gpu) -> Arc<OnceLock<Found>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(known.entry(gpu.name().to_owned()).or_default())
    }
}

/// Tries what may work, and says once what does, and why not what would be better.
fn find(gpu: &dyn Gpu, context: &Context, place: Place, forced: Forced) -> Found {
    if forced == Forced::To(Method::Staging) {
        return Ok(Method::Staging);
    }
    let (device, gpu_name) = (context.name(), gpu.name());
    let memory = match gpu.allocate(TRIED) {
        Ok(memory) => memory,
        // Copies take none of it.
        Err(error) if forced == Forced::No => {
            warn!(device, gpu = gpu_name, "frames to and from a GPU are copied: {error}");
            return Ok(Method::Staging);
        }
        Err(error) => return Err(error),
    };
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
