//! The choice of the method by which a device reaches a GPU's memory: tries one after the other.

use std::num::NonZeroUsize;
use std::sync::Arc;

use multinet_memory::{Findings, Forced, GpuMemory, Method, choose};

use crate::context::{Context, SourceGid};
use crate::error::Error;
use crate::gpu_direct::peermem;
use crate::memory::ProtectionDomain;
use crate::probe::probe_gpu;

/// The size in bytes of the GPU memory that methods are tried with.
pub const GPU_PROBE_SIZE: NonZeroUsize = NonZeroUsize::new(64 << 10).expect("not zero");

/// The method that was chosen for a GPU and a device, and why not a better one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuMethodChoice {
    /// The first method that works; `None` if the [forced](Forced::To) one does not work.
    pub method: Option<Method>,
    /// The reasons against the methods before it, in one line; empty if there are none.
    pub rejections: String,
    /// Whether one of those methods only failed for lack of a resource, or for another cause that
    /// may pass, so that it may work later.
    pub is_temporary: bool,
}

/// Chooses the method by which a device reaches a GPU's memory from a GID. It tries each method
/// that may work by writes in both directions, as [`probe_gpu`] does. The memory has
/// [`GPU_PROBE_SIZE`] bytes, which nothing else uses meanwhile. It blocks: not for an async task.
///
/// [`Method::Staging`] always works, so it is not tried.
pub fn choose_gpu_method(
    context: &Context,
    source: SourceGid,
    memory: &Arc<dyn GpuMemory>,
    forced: Forced,
) -> GpuMethodChoice {
    let import = ProtectionDomain::new(context).and_then(|domain| domain.supports_dma_buf());
    let mut is_temporary = import.as_ref().is_err_and(Error::is_out_of_resources);
    let findings = Findings {
        export: memory.export().map(drop).map_err(|error| error.to_string()),
        import: match import {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("{} does not take dma-bufs", context.name())),
            Err(error) => Err(error.to_string()),
        },
        peer_memory: peermem(),
    };
    let choice = choose(&findings, forced);
    let mut rejected = choice.rejected;
    let method = choice.candidates.into_iter().find(|&method| {
        let tried = match method {
            Method::Staging => Ok(()),
            _ => probe_gpu(context, source, memory, method),
        };
        let works = tried.is_ok();
        if let Err(error) = tried {
            is_temporary |= error.is_temporary();
            rejected.push((method, error.to_string()));
        }
        works
    });
    let reasons: Vec<_> = rejected.iter().map(|(method, reason)| format!("{method}: {reason}")).collect();
    GpuMethodChoice { method, rejections: reasons.join("; "), is_temporary }
}
