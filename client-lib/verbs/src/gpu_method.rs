//! By which method a device reaches a GPU's memory: what may work is tried, one after the other.

use std::num::NonZeroUsize;
use std::sync::Arc;

use multinet_memory::{Findings, Forced, GpuMemory, Method, choose};

use crate::context::{Context, SourceGid};
use crate::error::Error;
use crate::gpu_direct::peermem;
use crate::memory::ProtectionDomain;
use crate::probe::probe_gpu;

/// How much of a GPU's memory a device is tried with.
pub const GPU_PROBE_SIZE: NonZeroUsize = NonZeroUsize::new(64 << 10).expect("not zero");

/// What has come of trying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuMethodChoice {
    /// The first that works; `None` if one is [forced](Forced::To) and does not.
    pub method: Option<Method>,
    /// What speaks against those before it, in one line; empty if nothing does.
    pub rejections: String,
    /// Whether one of those was only out of room, or out of luck, when it was tried, so that it may work later.
    pub is_temporary: bool,
}

/// Tries by which method a device reaches a GPU's memory, by a port, a row of its GID table and what is there: writes there and back, as
/// [`probe_gpu`] does, by each that may work. The memory has [`GPU_PROBE_SIZE`] bytes, which nobody else uses meanwhile. Not for an async task.
///
/// [`Method::Staging`] needs nothing, so it is not tried.
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
