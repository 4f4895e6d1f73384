//! Who this process is.

use std::env;
use std::path::Path;

/// What this process tells its peers of itself.
///
/// By default what Kubernetes' downward API has put into the environment: `MULTINET_POD_NAME` (else `HOSTNAME`, else the host's name)
/// and `MULTINET_POD_UID`. With the uid a peer can notice that it has reached another pod than it meant, and an instance
/// that finds itself among the endpoints passes itself over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub(crate) name: String,
    pub(crate) uid: Option<String>,
}

impl Identity {
    /// With a name for other peers' logs.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: shortened(name.into()), uid: None }
    }

    /// With the uid of its pod.
    #[must_use]
    pub fn uid(mut self, uid: impl Into<String>) -> Self {
        self.uid = Some(shortened(uid.into())).filter(|uid| !uid.is_empty());
        self
    }

    /// As the environment has it.
    pub fn from_env() -> Self {
        let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let host = || std::fs::read_to_string(Path::new("/proc/sys/kernel/hostname")).ok();
        let name = variable("MULTINET_POD_NAME").or_else(|| variable("HOSTNAME")).or_else(host);
        let identity = Self::new(name.unwrap_or_default().trim());
        match variable("MULTINET_POD_UID") {
            Some(uid) => identity.uid(uid),
            None => identity,
        }
    }
}

/// Names travel in handshakes, which have a limit.
fn shortened(mut text: String) -> String {
    let end = text.floor_char_boundary(253);
    text.truncate(end);
    text
}
