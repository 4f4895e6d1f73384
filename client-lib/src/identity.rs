//! The identity of this process for its peers.

use std::env;
use std::path::Path;

/// Name and uid by which peers know this process.
///
/// By default they are those that Kubernetes' downward API puts into the environment:
/// `MULTINET_POD_NAME` (else `HOSTNAME`, else the host's name) and `MULTINET_POD_UID`. By the uid,
/// a peer notices that it has reached another pod than it meant, and an endpoint of a service
/// leaves itself out of its own peers.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::{Identity, Listener};
///
/// // Two listeners in one pod, with different names in the logs of senders.
/// let listener = |name| Listener::builder().identity(Identity::new(name));
/// let pictures = listener("infer-0/pictures").port(18515).bind().await?;
/// let results = listener("infer-0/results").port(18516).bind().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub(crate) name: String,
    pub(crate) uid: Option<String>,
}

impl Identity {
    /// Returns an identity with a name for the logs of peers.
    ///
    /// ```
    /// use multinet_client::Identity;
    ///
    /// // A handshake has room for 253 bytes of the name.
    /// assert_eq!(Identity::new("a".repeat(300)), Identity::new("a".repeat(253)));
    /// ```
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: shortened(name.into()), uid: None }
    }

    /// Returns the identity with the uid of its pod.
    ///
    /// ```
    /// use multinet_client::Identity;
    ///
    /// let identity = Identity::new("infer-0").uid("1c6f0f6e-6f0b-4c5e-9b53-3c0d7a5e1f10");
    /// assert_ne!(identity, Identity::new("infer-0"));
    /// // An empty uid, as of a variable that is not set, counts as none.
    /// assert_eq!(identity.uid(""), Identity::new("infer-0"));
    /// ```
    #[must_use]
    pub fn uid(mut self, uid: impl Into<String>) -> Self {
        self.uid = Some(shortened(uid.into())).filter(|uid| !uid.is_empty());
        self
    }

    /// Returns the identity that the environment describes.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Identity;
    ///
    /// // If the downward API is in a volume, not in the environment.
    /// let uid = std::fs::read_to_string("/etc/podinfo/uid")?;
    /// let identity = Identity::from_env().uid(uid.trim_end());
    /// # Ok(()) }
    /// ```
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

/// Returns the name of the Kubernetes Node that this process runs on, if its environment has it.
pub(crate) fn node_name() -> Option<String> {
    env::var("MULTINET_NODE_NAME").ok().filter(|node| !node.is_empty())
}

/// Returns a text of at most 253 bytes: handshakes have room for no more.
fn shortened(mut text: String) -> String {
    let end = text.floor_char_boundary(253);
    text.truncate(end);
    text
}
