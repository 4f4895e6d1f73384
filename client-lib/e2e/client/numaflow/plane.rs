//! Stand-in for Numaflow's data plane: the container `numa` of a pod, which calls the user-defined
//! function over its socket, with the SDK's protocol buffers.
//!
//! As in Numaflow 1.8, a message is acknowledged once all its outputs are written and its answer
//! has ended. When the function dies, its messages are given back.

mod map;
mod sink;
mod source;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

pub(super) use self::map::run as map;
pub(super) use self::sink::run as sink;
pub(super) use self::source::run as source;
use super::buffer::Buffer;

/// Buffers and sizes that the data planes of all pods share.
pub(super) struct Flow {
    pub(super) input: Arc<Buffer>,
    pub(super) output: Arc<Buffer>,
    /// The most messages that a data plane has in progress.
    pub(super) at_once: usize,
    pub(super) tally: Mutex<Tally>,
}

/// Observations of all data planes.
#[derive(Default)]
pub(super) struct Tally {
    /// Ids in the references of each message's payload. There has to be one.
    pub(super) ids: HashMap<u64, BTreeSet<String>>,
    /// References that `infer` could not resolve in time, which went to the fallback sink.
    pub(super) fallen_back: Vec<String>,
    /// Offsets at the receiving side of a boundary, by the message's value.
    pub(super) offsets: BTreeMap<String, BTreeSet<String>>,
    pub(super) rejected: usize,
    /// Deliveries of offsets that were in progress.
    pub(super) duplicates: usize,
}

/// Connects to the socket of a function. `None` if the function has died.
async fn connect(socket: PathBuf) -> Option<Channel> {
    let connector = service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(socket).await?)) }
    });
    Endpoint::from_static("http://function").connect_with_connector(connector).await.ok()
}
